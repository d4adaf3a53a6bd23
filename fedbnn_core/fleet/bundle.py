"""The one file that is copied to a device: whom to trust, who it is, where to call."""

import json
import os
import stat
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fedbnn_core.errors import FleetError
from fedbnn_core.files import write_private

__all__ = ["Bundle", "others_can_read", "read_bundle", "write_bundle"]

_FORMAT = 1


@dataclass(frozen=True)
class Bundle:
    """A device's credentials. Whoever has this file can act as the device."""

    device: str
    """Its name in the fleet."""
    server: str
    """Host and port of the server's Fleet API."""
    partition_id: int
    """Its number in the fleet; decides its share of a named dataset."""
    ca_certificate: str
    """The fleet's authority, PEM."""
    private_key: str
    """The device's own key, OpenSSH PEM."""


def write_bundle(path: Path, bundle: Bundle) -> None:
    """Write the bundle, readable by its owner only."""
    content = {"fedbnn-bundle": _FORMAT, **asdict(bundle)}
    write_private(path, (json.dumps(content, indent=2) + "\n").encode())


def others_can_read(path: Path) -> bool:
    """Return whether somebody else than this user, its owner, can read a bundle.

    Not asked of a file that somebody else gave to this user, such as a secret that is
    mounted into a container: its owner decides.
    """
    status = path.stat()
    is_open = bool(status.st_mode & (stat.S_IRGRP | stat.S_IROTH))
    return is_open and status.st_uid == os.getuid()


def read_bundle(path: Path) -> Bundle:
    """Read a bundle; raise `FleetError` if the file is none."""
    advice = "copy the file that 'fedbnn fleet add' made on the server"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FleetError(f"there is no bundle at {path}; {advice}") from error
    except OSError as error:
        raise FleetError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise FleetError(f"{path} is damaged or no bundle; {advice}") from error
    if not isinstance(content, dict) or content.get("fedbnn-bundle") != _FORMAT:
        raise FleetError(f"{path} is no bundle of this version of FedBNN; {advice}")
    values = {entry.name: content.get(entry.name) for entry in fields(Bundle)}
    for entry in fields(Bundle):
        if type(values[entry.name]) is not entry.type:
            raise FleetError(f"{path} lacks a valid {entry.name!r}; {advice}")
    return Bundle(**values)  # type: ignore[arg-type]

"""The file fleet.json: a fleet's address, its devices and their public keys."""

import json
from pathlib import Path
from typing import Any

from fedbnn_core.errors import FleetError
from fedbnn_core.files import write_private

__all__ = ["read_listing", "write_listing"]

_FORMAT = 1


def read_listing(folder: Path) -> dict[str, Any]:
    """Return what fleet.json holds; raise `FleetError` if it cannot be used."""
    path = folder / "fleet.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FleetError(
            f"there is no fleet in {folder}; make one with "
            "'fedbnn fleet init --host NAME_OR_IP', or give its folder as --fleet"
        ) from error
    except OSError as error:
        raise FleetError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise FleetError(f"{path} is damaged: {error}") from error
    if content.get("fedbnn-fleet") != _FORMAT:
        raise FleetError(f"{path} is of another version of FedBNN")
    return dict(content)


def write_listing(folder: Path, content: dict[str, Any]) -> None:
    """Replace fleet.json in one step."""
    text = json.dumps({**content, "fedbnn-fleet": _FORMAT}, indent=2) + "\n"
    write_private(folder / "fleet.json", text.encode())

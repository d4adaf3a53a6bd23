"""The operator's folder: the fleet's authority and server keys, and its devices.

FOLDER/fleet.json       address, devices and their public keys
       ca.key, ca.crt    the authority
       server.key, .crt  the server
       bundles/          one file per device, to be copied there
       state/            the SuperLink's database
"""

import datetime
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedbnn_core.errors import FleetError
from fedbnn_core.files import locked, write_private
from fedbnn_core.fleet.bundle import Bundle, write_bundle
from fedbnn_core.fleet.credentials import (
    Pair,
    checked_host,
    expiry,
    join_address,
    make_authority,
    make_node_key,
    make_server_certificate,
    names_of,
)
from fedbnn_core.fleet.listing import read_listing, write_listing

__all__ = ["Device", "Fleet", "default_fleet_folder"]

_DEVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
AUTHORITY_DAYS = 3650
SERVER_DAYS = 825
FLEET_PORT = 9092


def default_fleet_folder() -> Path:
    """Return ``$FEDBNN_FLEET``, else a folder of the user's configuration."""
    if folder := os.environ.get("FEDBNN_FLEET"):
        return Path(folder).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "fedbnn" / "fleet"


@dataclass(frozen=True)
class Device:
    """A registered device."""

    name: str
    partition_id: int
    public_key: str
    """OpenSSH format."""
    added: str
    """When, ISO 8601 in UTC."""


class Fleet:
    """A fleet's folder.

    Commands change `fleet.json` only; the server, which watches that file, tells the
    SuperLink. So devices can be added whether or not the server runs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(
        cls,
        folder: Path,
        hosts: Sequence[str],
        *,
        port: int = FLEET_PORT,
        days: int = SERVER_DAYS,
    ) -> "Fleet":
        """Make authority, server certificate and an empty list of devices.

        Parameters
        ----------
        folder : Path
            Made if missing; must not hold a fleet yet.
        hosts : sequence of str
            How devices reach the server; the first goes into the bundles.
        port : int
            Where they reach it.
        days : int
            Days until the server's certificate expires.
        """
        if (folder / "fleet.json").exists():
            raise FleetError(
                f"{folder} holds a fleet already; 'fedbnn fleet renew' changes its "
                "host names, or choose another --fleet folder for a second fleet"
            )
        hosts = [checked_host(host) for host in hosts]
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        authority = make_authority(days=AUTHORITY_DAYS)
        server = make_server_certificate(authority, hosts, days=days)
        fleet = cls(folder)
        write_private(fleet.ca_key, authority.private)
        write_private(fleet.ca_certificate, authority.public)
        write_private(fleet.server_key, server.private)
        write_private(fleet.server_certificate, server.public)
        fleet._write({"hosts": hosts, "port": port, "devices": []})
        return fleet

    @classmethod
    def open(cls, folder: Path) -> "Fleet":
        """Open an existing fleet; raise `FleetError` if there is none."""
        fleet = cls(folder)
        fleet._read()
        return fleet

    @property
    def ca_key(self) -> Path:
        """The authority's key; needed for `renew` only, may be kept elsewhere."""
        return self.folder / "ca.key"

    @property
    def ca_certificate(self) -> Path:
        """The authority's certificate, which devices trust."""
        return self.folder / "ca.crt"

    @property
    def server_key(self) -> Path:
        """The server's key."""
        return self.folder / "server.key"

    @property
    def server_certificate(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.crt"

    @property
    def state_folder(self) -> Path:
        """Where the SuperLink keeps its database."""
        return self.folder / "state"

    @property
    def address(self) -> str:
        """Host and port that devices call."""
        content = self._read()
        return join_address(content["hosts"][0], content["port"])

    @property
    def listening_address(self) -> str:
        """Where the server listens: its port on all interfaces."""
        content = self._read()
        is_ipv6 = any(":" in host for host in content["hosts"])
        return join_address("::" if is_ipv6 else "0.0.0.0", content["port"])  # noqa: S104

    def server_names(self) -> list[str]:
        """Return the names that the server's certificate is valid for."""
        return names_of(self.server_certificate.read_bytes())

    def answers_to(self, hosts: Sequence[str]) -> bool:
        """Say whether the certificate has these names and bundles call the first."""
        wanted = [checked_host(host) for host in hosts]
        first = self._read()["hosts"][0]
        return first == wanted[0] and set(wanted) <= set(self.server_names())

    def expiries(self) -> dict[str, datetime.datetime]:
        """Return when the authority and the server certificate expire."""
        return {
            "authority": expiry(self.ca_certificate.read_bytes()),
            "server certificate": expiry(self.server_certificate.read_bytes()),
        }

    def renew(
        self,
        hosts: Sequence[str] = (),
        *,
        days: int = SERVER_DAYS,
        preferred: bool = False,
    ) -> None:
        """Make a new server certificate; devices need nothing new.

        Parameters
        ----------
        hosts : sequence of str
            More host names; those it has stay, since bundles call them.
        days : int
            Days until it expires.
        preferred : bool
            Whether new bundles call the first of `hosts`.
        """
        new = [checked_host(host) for host in hosts]
        with self._changing() as content:
            old = content["hosts"]
            names = (*new, *old) if preferred else (*old, *new)
            content["hosts"] = list(dict.fromkeys(names))
            try:
                key = self.ca_key.read_bytes()
            except OSError as error:
                raise FleetError(
                    f"{self.ca_key} is needed to renew: {error.strerror}; bring it "
                    "back from where you keep it"
                ) from error
            server = make_server_certificate(
                Pair(key, self.ca_certificate.read_bytes()), content["hosts"], days=days
            )
            write_private(self.server_key, server.private)
            write_private(self.server_certificate, server.public)

    def devices(self) -> list[Device]:
        """Return the registered devices by partition id."""
        return [Device(**entry) for entry in self._read()["devices"]]

    def num_partitions(self) -> int:
        """Return into how many parts a named dataset is divided for this fleet."""
        return max((d.partition_id + 1 for d in self.devices()), default=0)

    def add(self, name: str) -> tuple[Device, Path]:
        """Register a device and write its bundle into the fleet's folder.

        Parameters
        ----------
        name : str
            Letters, digits, dots, dashes and underscores.

        Returns
        -------
        tuple
            The device and the bundle's path. The device has the smallest free number
            as its partition id.
        """
        if not _DEVICE_NAME.fullmatch(name):
            raise FleetError(
                f"{name!r} is no device name; use up to 63 letters, digits, dots, "
                "dashes and underscores, starting with a letter or digit"
            )
        path = self._bundle_path(name)
        with self._changing() as content:
            taken = {entry["partition_id"] for entry in content["devices"]}
            if any(entry["name"] == name for entry in content["devices"]):
                raise FleetError(
                    f"{name} belongs to the fleet already; 'fedbnn fleet bundle {name}'"
                    " prints its bundle again"
                )
            pair = make_node_key()
            device = Device(
                name=name,
                partition_id=next(i for i in range(len(taken) + 1) if i not in taken),
                public_key=pair.public.decode(),
                added=_now(),
            )
            bundle = Bundle(
                device=name,
                server=self.address,
                partition_id=device.partition_id,
                ca_certificate=self.ca_certificate.read_text(encoding="ascii"),
                private_key=pair.private.decode(),
            )
            write_bundle(path, bundle)
            content["devices"].append(asdict(device))
            content["devices"].sort(key=lambda entry: entry["partition_id"])
        return device, path

    def bundle(self, name: str) -> Path:
        """Return where a device's bundle is kept; raise `FleetError` if it is not."""
        if all(device.name != name for device in self.devices()):
            raise self._unknown(name)
        path = self._bundle_path(name)
        if not path.is_file():
            raise FleetError(
                f"the fleet has no copy of {name}'s bundle; make a new one with "
                f"'fedbnn fleet remove {name}' and 'fedbnn fleet add {name}'"
            )
        return path

    def remove(self, name: str) -> Device:
        """Take a device out of the fleet; it can no longer join."""
        with self._changing() as content:
            for entry in content["devices"]:
                if entry["name"] == name:
                    content["devices"].remove(entry)
                    break
            else:
                raise self._unknown(name)
        self._bundle_path(name).unlink(missing_ok=True)
        return Device(**entry)

    def _bundle_path(self, name: str) -> Path:
        return self.folder / "bundles" / f"{name}.bundle"

    def _unknown(self, name: str) -> FleetError:
        known = ", ".join(device.name for device in self.devices()) or "none"
        return FleetError(f"there is no device {name!r}; devices: {known}")

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """Yield the content for changes, one process at a time, and write it."""
        with locked(self.folder / ".lock"):
            content = self._read()
            yield content
            self._write(content)

    def _read(self) -> dict[str, Any]:
        return read_listing(self.folder)

    def _write(self, content: dict[str, Any]) -> None:
        write_listing(self.folder, content)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

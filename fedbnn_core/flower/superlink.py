"""Serve a fleet: run Flower's SuperLink and keep its list of devices up to date."""

import datetime
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedbnn_core.errors import FedBNNError, FleetError
from fedbnn_core.fleet.credentials import join_address
from fedbnn_core.fleet.membership import SERVED_FLEET
from fedbnn_core.fleet.registry import Fleet
from fedbnn_core.flower.child import fleet_environment, started
from fedbnn_core.flower.control import Endpoint, connected
from fedbnn_core.flower.version import FLEET_API_LINE, require_grpc_flower

__all__ = ["ServerSettings", "serve_fleet", "superlink_command"]

_START_SECONDS = 300.0
_SYNC_SECONDS = 1.0
# The control port opens a moment after the Fleet API.
_OPENING_SECONDS = 30.0
_REPEAT_SECONDS = 60.0
_DAY_SECONDS = 86400.0
_WARN_DAYS = 30
_REMEDIES = {
    "server certificate": "Run 'fedbnn fleet renew' and restart the server.",
    "authority": "Make a new fleet with 'fedbnn fleet init' and copy new bundles.",
}


@dataclass(frozen=True)
class ServerSettings:
    """Where the SuperLink listens."""

    fleet_address: str
    """The Fleet API, for devices."""
    control_host: str = "127.0.0.1"
    """The control port's host: loopback, since it has no login."""
    control_port: int = 8000
    insecure: bool = False
    """Without TLS and without knowing who connects."""

    @property
    def control_address(self) -> str:
        """Where the operator's commands connect."""
        return join_address(self.control_host, self.control_port)


def superlink_command(fleet: Fleet | None, settings: ServerSettings) -> list[str]:
    """Return the command line of the SuperLink; None means no TLS and no devices."""
    command = [
        *(sys.executable, "-P", "-m", "fedbnn_core.flower.guarded_superlink"),
        *("--host", settings.control_host, "--port", str(settings.control_port)),
        *("--fleet-api-type", "grpc-rere"),
        *("--fleet-api-address", settings.fleet_address),
        "--disable-runtime-dependency-installation",
    ]
    if fleet is None:
        return [*command, "--insecure"]
    return [
        *command,
        *("--database", str(fleet.state_folder / "state.db")),
        "--enable-supernode-auth",
        *("--ssl-ca-certfile", str(fleet.ca_certificate)),
        *("--ssl-certfile", str(fleet.server_certificate)),
        *("--ssl-keyfile", str(fleet.server_key)),
    ]


def serve_fleet(
    fleet: Fleet | None,
    settings: ServerSettings,
    *,
    say: Callable[[str], None],
    on_line: Callable[[str], None] = lambda line: None,
) -> None:
    """Run the SuperLink until it ends or this process is told to.

    Parameters
    ----------
    fleet : Fleet, optional
        The fleet; None serves anybody without TLS, which `settings` must say too.
    settings : ServerSettings
        Where it listens.
    say : callable
        Receives what an operator should know.
    on_line : callable
        Receives every line of the SuperLink's log.

    Raises
    ------
    FleetError
        A certificate has expired, a port is taken, Flower is another version, or the
        SuperLink ended.
    """
    require_grpc_flower()
    if (fleet is None) != settings.insecure:
        raise FleetError("serve either a fleet, or insecurely without one")
    _require_free_ports(settings)
    home = Path.home() / ".flwr"
    if fleet is not None:
        # The SuperLink reads its certificate once; a renewed one needs a restart.
        expiries = fleet.expiries()
        if obstacle := _warn_of_expiry(expiries, say):
            raise FleetError(obstacle)
        home = fleet.state_folder.absolute() / "flwr"
        home.mkdir(parents=True, exist_ok=True)
    command = superlink_command(fleet, settings)
    served = {SERVED_FLEET: str(fleet.folder.absolute()) if fleet is not None else ""}
    with started(command, fleet_environment(home) | served) as process:
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(process, lines, on_line))
        reader.daemon = True
        reader.start()
        _wait_for_fleet_api(process, lines)
        say(
            f"Devices connect to {settings.fleet_address} (gRPC"
            f"{'' if settings.insecure else ', TLS'}); control port "
            f"{settings.control_address}"
        )
        if fleet is not None:
            endpoint = Endpoint(settings.control_address, fleet.ca_certificate)
            _keep_registered(process, fleet, endpoint, expiries, say)
        code = process.wait()
        raise FleetError(f"the SuperLink ended with code {code}; see its log above")


def _read(
    process: subprocess.Popen[str],
    lines: "queue.SimpleQueue[str]",
    on_line: Callable[[str], None],
) -> None:
    waiting = True
    for line in process.stdout or ():
        on_line(line.rstrip("\n"))
        if waiting:
            lines.put(line)
            waiting = FLEET_API_LINE not in line


def _wait_for_fleet_api(
    process: subprocess.Popen[str], lines: "queue.SimpleQueue[str]"
) -> None:
    """Wait until the SuperLink says that its Fleet API is gRPC."""
    deadline = time.monotonic() + _START_SECONDS
    seen: list[str] = []
    while time.monotonic() < deadline:
        try:
            line = lines.get(timeout=0.5)
        except queue.Empty:
            if process.poll() is not None:
                break
            continue
        if FLEET_API_LINE in line:
            return
        seen.append(line.rstrip())
    raise FleetError(
        "the SuperLink did not open a gRPC Fleet API; its last words:\n"
        + "\n".join(seen[-15:])
    )


def _keep_registered(
    process: subprocess.Popen[str],
    fleet: Fleet,
    endpoint: Endpoint,
    expiries: Mapping[str, datetime.datetime],
    say: Callable[[str], None],
) -> None:
    """Tell the SuperLink about devices whenever the fleet's file has changed."""
    path = fleet.folder / "fleet.json"
    applied = -1
    now = time.monotonic()
    complain_at, look_at = now + _OPENING_SECONDS, now + _DAY_SECONDS
    while process.poll() is None:
        now = time.monotonic()
        if now >= look_at:
            look_at = now + _DAY_SECONDS
            if expired := _warn_of_expiry(expiries, say):
                say(expired)
        changed = path.stat().st_mtime_ns
        if changed != applied:
            try:
                with connected(endpoint) as connection:
                    added, removed = connection.reconcile(fleet.devices())
            except FedBNNError as error:
                if now >= complain_at:
                    say(f"cannot update the devices: {error}")
                    complain_at = now + _REPEAT_SECONDS
            else:
                applied, complain_at = changed, now
                for name in added:
                    say(f"{name} may join")
                for name in removed:
                    say(f"{name} was removed and is cut off")
        time.sleep(_SYNC_SECONDS)


def _warn_of_expiry(
    expiries: Mapping[str, datetime.datetime], say: Callable[[str], None]
) -> str:
    """Say which certificates end soon; return what to say of one that has ended."""
    now = datetime.datetime.now(datetime.UTC)
    for name, end in expiries.items():
        left = end - now
        if left.total_seconds() <= 0:
            return (
                f"the {name} expired on {end:%Y-%m-%d}; devices refuse it. "
                f"{_REMEDIES[name]}"
            )
        if left.days < _WARN_DAYS:
            say(f"the {name} expires in {left.days} days. {_REMEDIES[name]}")
    return ""


def _require_free_ports(settings: ServerSettings) -> None:
    for address in (settings.fleet_address, settings.control_address):
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host.strip("[]"), int(port)))
            except OSError as error:
                raise FleetError(
                    f"cannot listen on {address}: {error.strerror}; is another server "
                    "running? Choose other ports with --fleet-address and --control"
                ) from error

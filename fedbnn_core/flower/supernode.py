"""Join a fleet as a device: a thin layer over Flower's own SuperNode.

It unpacks the bundle, checks the data and the way to the server, starts the SuperNode
and puts its errors into words. All federated work is Flower's.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fedbnn_core.errors import FleetError
from fedbnn_core.fleet.bundle import Bundle
from fedbnn_core.flower.child import fleet_environment, started
from fedbnn_core.flower.device_keys import remove_old_keys, unpacked
from fedbnn_core.flower.reachability import (
    find_obstacle,
    proxy_note,
    refusal_of,
    split_address,
)
from fedbnn_core.flower.refusals import LOST_HEARTBEAT, explain
from fedbnn_core.flower.version import require_grpc_flower
from fedbnn_core.flower.warm import launchers, warm_process

__all__ = ["DeviceSettings", "run_device", "supernode_command"]

_FIRST_PAUSE_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 60.0
# The server takes a dead connection for alive for about 55 s; only after that does a
# refusal mean that it does not know the device.
_REFUSALS_SECONDS = 90.0
_REFUSAL_PAUSE_SECONDS = 10.0
_LAST_WORDS_SECONDS = 1.0
_TAIL_LINES = 60


@dataclass(frozen=True)
class DeviceSettings:
    """What a device does in its fleet."""

    server: str
    """HOST:PORT of the Fleet API."""
    partition_id: int
    """Its number in the fleet."""
    name: str
    """Its name, for the server's log."""
    state: Path
    """Folder for Flower's files and for the models that come back."""
    data: str = ""
    """Own images: a folder or an .npz file; empty: a partition of the run's dataset."""
    data_dir: str = ""
    """Where named datasets lie on this device; empty: the usual places."""
    device: str = "auto"
    """Where it trains: auto, cpu, cuda, cuda:1, ...; the run's key does not count."""
    threads: int = 0
    """Threads that train; 0: one per core."""
    insecure: bool = False
    """Without TLS and without a key."""
    cold: bool = False
    """Whether each message gets a process of its own that loads everything itself."""

    @property
    def models(self) -> Path:
        """Where packed models are stored."""
        return self.state / "models"

    @property
    def connected_mark(self) -> Path:
        """A file that is there while the device is in its fleet; for health checks."""
        return self.state / "connected"

    def node_config(self) -> str:
        """Return what the client app needs to know, in Flower's notation."""
        values: dict[str, str | int] = {
            "partition-id": self.partition_id,
            "device-name": self.name,
            "model-dir": str(self.models.absolute()),
            "device": self.device,
            "client-threads": self.threads,
        }
        if self.data:
            values["data"] = str(Path(self.data).expanduser().absolute())
        if self.data_dir:
            values["data-dir"] = str(Path(self.data_dir).expanduser().absolute())
        return " ".join(f"{key}={_quoted(value)}" for key, value in values.items())


def supernode_command(
    settings: DeviceSettings, credentials: Path | None, port: int
) -> list[str]:
    """Return the command line of Flower's SuperNode.

    Parameters
    ----------
    settings : DeviceSettings
        What the device does.
    credentials : Path, optional
        Folder with ``ca.crt`` and ``key``; None: no TLS.
    port : int
        Loopback port between the SuperNode and its training processes.
    """
    command = [
        *(sys.executable, "-P", "-m", "fedbnn_core.flower.short_waits"),
        "flower-supernode",
        *("--superlink", settings.server),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--node-config", settings.node_config()),
    ]
    if credentials is None:
        return [*command, "--insecure"]
    return [
        *command,
        *("--root-certificates", str(credentials / "ca.crt")),
        *("--auth-supernode-private-key", str(credentials / "key")),
    ]


def run_device(
    settings: DeviceSettings,
    bundle: Bundle | None,
    *,
    say: Callable[[str], None],
    on_line: Callable[[str], None] = lambda line: None,
    wait: bool = True,
) -> None:
    """Join the fleet and take part in its runs until told to end.

    Parameters
    ----------
    settings : DeviceSettings
        What the device does.
    bundle : Bundle, optional
        Its credentials; None only if `settings` says insecure.
    say : callable
        Receives what the device's owner should know.
    on_line : callable
        Receives every line of the SuperNode's log.
    wait : bool
        Whether to wait for a server that cannot be reached yet.

    Raises
    ------
    FleetError
        The device cannot take part; the message says why and what to do.
    """
    require_grpc_flower()
    if bundle is None and not settings.insecure:
        raise FleetError("a device needs its bundle, or --insecure")
    host, _ = split_address(settings.server)
    if note := proxy_note(host):
        say(note)
    (settings.state / "flwr").mkdir(parents=True, exist_ok=True)
    # Both may be left over from a device that lost its power.
    settings.connected_mark.unlink(missing_ok=True)
    remove_old_keys(settings.state)
    with ExitStack() as running:
        folder = settings.state.absolute() / "warm"
        first = running.enter_context(launchers(folder, is_warm=not settings.cold))
        environment = fleet_environment(settings.state.absolute() / "flwr")
        environment["PATH"] = os.pathsep.join([first, environment["PATH"]])
        if not settings.cold:
            running.enter_context(warm_process(folder, environment, on_line))
        _stay(settings, bundle, environment, say, on_line, wait)


def _stay(
    settings: DeviceSettings,
    bundle: Bundle | None,
    environment: Mapping[str, str],
    say: Callable[[str], None],
    on_line: Callable[[str], None],
    wait: bool,
) -> None:
    """Run one SuperNode after the other; raise `FleetError` if there is no use."""
    refused_since: float | None = None
    while True:
        _wait_for_server(
            settings.server, bundle.ca_certificate if bundle else None, say, wait
        )
        with unpacked(bundle, settings.state) as credentials:
            command = supernode_command(settings, credentials, _free_port())
            log, joined = _run_once(command, environment, settings, say, on_line)
        refusal = explain(log)
        if bundle is not None and not refusal.is_certain:
            # Flower ends a SuperNode without a word when the server refuses it.
            server, key = settings.server, bundle.private_key
            log.append(refusal_of(server, bundle.ca_certificate, key))
            refusal = explain(log)
        # A device that was connected comes back, unless the server says no.
        if not refusal.may_pass and not (joined and not refusal.is_certain):
            raise FleetError(refusal.text)
        now = time.monotonic()
        if refused_since is None or joined:
            refused_since = now
        if now - refused_since > _REFUSALS_SECONDS or not wait:
            raise FleetError(refusal.text)
        say(f"{refusal.text}. Trying again in {_REFUSAL_PAUSE_SECONDS:.0f} s ...")
        time.sleep(_REFUSAL_PAUSE_SECONDS)


def _run_once(
    command: list[str],
    environment: Mapping[str, str],
    settings: DeviceSettings,
    say: Callable[[str], None],
    on_line: Callable[[str], None],
) -> tuple[list[str], bool]:
    """Run the SuperNode to its end; return its last lines and whether it joined."""
    tail: list[str] = []
    mark = settings.connected_mark
    joined = False

    def read() -> None:
        nonlocal joined
        for line in process.stdout or ():
            text = line.rstrip("\n")
            tail.append(text)
            del tail[:-_TAIL_LINES]
            on_line(text)
            if "SuperNode ID" in text:
                joined = True
                mark.touch()
                say("Connected; waiting for runs. Ctrl-C ends it.")
            elif joined and "Connection attempt failed" in text:
                if mark.exists():
                    say("The connection to the server is lost; trying again ...")
                mark.unlink(missing_ok=True)
            elif joined and "Connection successful" in text:
                if not mark.exists():
                    say("Connected again.")
                mark.touch()
            elif LOST_HEARTBEAT in text:
                process.terminate()

    try:
        with started(command, environment) as process:
            # In a thread: the SuperNode's children keep the pipe open when it ends.
            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            process.wait()
            reader.join(_LAST_WORDS_SECONDS)
            return list(tail), joined
    finally:
        mark.unlink(missing_ok=True)


def _wait_for_server(
    address: str, ca_certificate: str | None, say: Callable[[str], None], wait: bool
) -> None:
    pause = _FIRST_PAUSE_SECONDS
    while (obstacle := find_obstacle(address, ca_certificate)) is not None:
        if not obstacle.may_pass or not wait:
            raise FleetError(obstacle.reason)
        say(f"{obstacle.reason} Trying again in {pause:.0f} s ...")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _quoted(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    if "'" in value or "\n" in value:
        raise FleetError(
            f"Flower cannot pass on {value!r}; use a path without quotes and line ends"
        )
    # A literal TOML string: backslashes and double quotes stay as they are.
    return f"'{value}'"

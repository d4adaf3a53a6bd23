"""A fleet on this machine: server and devices as processes, by the CLI."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedbnn_core.fleet import Fleet
from fedbnn_core.flower.processes import end_marked_processes

MARKER = "FEDBNN_BENCH_FLEET"
"""Variable by which a fleet's processes are told; its value is the folder."""
PROCESSES = {
    "guarded_superlink": "server: SuperLink",
    "flwr-serverapp": "server: ServerApp",
    "flower-supernode": "device: SuperNode",
    "client_app.warm": "device: warm process and its copies",
    "flwr-clientapp": "device: ClientApp",
    "flower-superexec": "both: SuperExec",
    "fedbnn_core.cli": "both: fedbnn fleet serve, fedbnn device",
}
"""What to call a process whose command line has these words."""
_FEDBNN = [sys.executable, "-c", "from fedbnn_core.cli import main; main()"]
_ROOT = Path(__file__).parents[1]


class Service:
    """A process and its lines with the moment at which each came."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.lines: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            [*_FEDBNN, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append((time.monotonic(), line))

    def wait_for(self, phrase: str) -> None:
        """Wait until a line holds the phrase."""
        while not any(phrase in line for _, line in self.lines):
            if self.process.poll() is not None:
                raise SystemExit("".join(line for _, line in self.lines))
            time.sleep(0.1)


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@dataclass
class Site:
    """A running server and its devices."""

    folder: str
    address: str
    control: str
    environment: dict[str, str]
    devices: list[Service] = field(default_factory=list)

    def bundle(self, name: str) -> str:
        """Return the path of a device's bundle."""
        return f"{self.folder}/fleet/bundles/{name}.bundle"

    def start(self, *arguments: str) -> Service:
        """Start a command of ``fedbnn``."""
        return Service(list(arguments), self.environment)

    def start_run(self, **settings: object) -> Service:
        """Start a training; results go to the folder ``runs``."""
        settings |= {"deliver-model": "false", "output-dir": f"{self.folder}/runs"}
        pairs = [("-c", f"{key.replace('_', '-')}={settings[key]}") for key in settings]
        words = [word for pair in pairs for word in pair]
        return self.start("deploy", "run", "--control", self.control, *words)

    def metrics_file(self) -> Path | None:
        """Return the run's ``metrics.jsonl``, once it is there."""
        return next(Path(self.folder, "runs").glob("*/metrics.jsonl"), None)


@contextmanager
def served_fleet(names: Sequence[str]) -> Iterator[Site]:
    """Yield a server, TLS and device keys, that knows devices of these names."""
    with tempfile.TemporaryDirectory() as folder:
        address, control = _free_address(), _free_address()
        environment = os.environ | {
            MARKER: folder,
            "HOME": folder,
            "FEDBNN_FLEET": f"{folder}/fleet",
            "PYTHONPATH": str(_ROOT),
        }
        site = Site(folder, address, control, environment)
        port = address.rpartition(":")[2]
        made = site.start("fleet", "init", "--host", "127.0.0.1", "--port", port)
        made.process.wait()
        fleet = Fleet(Path(environment["FEDBNN_FLEET"]))
        for name in names:
            fleet.add(name)
        try:
            server = site.start(
                *("fleet", "serve", "--verbose", "--fleet-address", address),
                *("--control", control),
            )
            server.wait_for("Devices connect to")
            server.wait_for(f"{names[-1]} may join")
            yield site
        finally:
            end_marked_processes(MARKER, folder)


@contextmanager
def running_fleet(names: Sequence[str]) -> Iterator[Site]:
    """Yield a server with these devices, all connected."""
    with served_fleet(names) as site:
        site.devices = [
            site.start(
                *("device", "--verbose", "--threads", "1"),
                *("--state", f"{site.folder}/{name}", "--bundle", site.bundle(name)),
            )
            for name in names
        ]
        for device in site.devices:
            device.wait_for("Connected")
        yield site

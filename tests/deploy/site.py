"""A fleet on this machine: a real server and real devices as processes, by the CLI."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from fedbnn_core.flower.processes import end_marked_processes
from fedbnn_core.runs.directory import RunDirectory

ROOT = Path(__file__).resolve().parents[2]
FEDBNN = [sys.executable, "-c", "from fedbnn_core.cli import main; main()"]
# 400 embedded images for all devices together: a local round takes a second.
QUICK = {
    "num-server-rounds": 2,
    "local-epochs": 1,
    "batch-size": 32,
    "train-limit": 400,
    "test-limit": 200,
    "client-threads": 1,
}
MARKER = "FEDBNN_TEST_SITE"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, timeout, what):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.1)
    raise AssertionError(f"no {what() if callable(what) else what} in {timeout} s")


class Service:
    """A process that runs on, and its log."""

    def __init__(self, command, log, environment, cwd):
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=cwd,
            )

    def text(self):
        return self.log.read_text(errors="replace")

    def wait_for(self, phrase, timeout=240):
        def there():
            text = self.text()
            assert phrase in text or self.process.poll() is None, text
            return phrase in text

        wait_until(there, timeout, lambda: f"{phrase!r} in:\n{self.text()}")

    def end(self):
        self.process.terminate()
        return self.process.wait(30)


class Site:
    """A folder with a fleet, and the processes that were started for it."""

    def __init__(self, folder):
        self.folder = folder
        self.fleet = folder / "fleet"
        self.control = f"127.0.0.1:{free_port()}"
        self.address = f"127.0.0.1:{free_port()}"
        self.services = []
        self.environment = os.environ | {
            MARKER: str(folder),
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "200",
            "FEDBNN_FLEET": str(self.fleet),
            "HOME": str(folder),
        }

    def fedbnn(self, *arguments, timeout=300, **environment):
        """Run a command to its end."""
        return subprocess.run(
            [*FEDBNN, *map(str, arguments)],
            env=self.environment | environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def start(self, *arguments, name, prefix=(), **environment):
        """Start a command that runs on."""
        service = Service(
            [*prefix, *FEDBNN, *map(str, arguments)],
            self.folder / f"{name}-{len(self.services)}.log",
            self.environment | environment,
            self.folder,
        )
        self.services.append(service)
        return service

    def init(self, *devices):
        port = self.address.rpartition(":")[2]
        made = self.fedbnn("fleet", "init", "--host", "127.0.0.1", "--port", port)
        assert made.returncode == 0, made.stderr
        for device in devices:
            added = self.fedbnn("fleet", "add", device)
            assert added.returncode == 0, added.stderr

    def serve(self, *options, prefix=()):
        server = self.start(
            *("fleet", "serve", "--verbose", "--fleet-address", self.address),
            *("--control", self.control, *options),
            name="server",
            prefix=prefix,
        )
        server.wait_for("Devices connect to")
        return server

    def bundle(self, name):
        return self.fleet / "bundles" / f"{name}.bundle"

    def device(self, name, *options, prefix=(), **environment):
        """Start a device; with one thread, as simulated clients have."""
        return self.start(
            *("device", "--verbose", "--threads", "1", "--bundle", self.bundle(name)),
            *("--state", self.folder / name, *options),
            name=name,
            prefix=prefix,
            **environment,
        )

    def run_arguments(self, **overrides):
        settings = QUICK | {k.replace("_", "-"): v for k, v in overrides.items()}
        pairs = [("-c", f"{key}={value}") for key, value in settings.items()]
        return [
            *("deploy", "run", "--control", self.control),
            *(part for pair in pairs for part in pair),
        ]

    def run(self, **overrides):
        """Run a training to its end."""
        return self.fedbnn(*self.run_arguments(**overrides), timeout=600)

    def run_directory(self):
        folders = sorted((self.folder / "runs").iterdir())
        return RunDirectory(folders[-1])

    def close(self):
        for service in self.services:
            if service.process.poll() is None:
                service.process.send_signal(signal.SIGTERM)
        for service in self.services:
            try:
                service.process.wait(30)
            except subprocess.TimeoutExpired:
                service.process.kill()
                service.process.wait(30)
        end_marked_processes(MARKER, str(self.folder))


def children_of(pid):
    """Return the ids of a process's direct children."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()]

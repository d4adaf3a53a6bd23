"""Real `fedbnn run` and `flwr run` for the tests of the apps."""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedbnn_core.runs.directory import RunDirectory

BIN = Path(sys.executable).parent
SMALL = {
    "num-server-rounds": "2",
    "clients-per-round": "2",
    "local-epochs": "1",
    "client-threads": "1",
    "train-limit": "1000",
    "test-limit": "400",
}


@dataclass(frozen=True)
class FinishedRun:
    """What a `fedbnn run` left behind."""

    returncode: int
    output: str
    directory: RunDirectory | None
    leftovers: list[str]


def run_command(output_dir, clients=4, cpus_per_client=1, **overrides):
    """Return the command line of a small run."""
    settings = SMALL | {k.replace("_", "-"): str(v) for k, v in overrides.items()}
    settings["output-dir"] = str(output_dir)
    command = [str(BIN / "fedbnn"), "run", "--clients", str(clients)]
    command += ["--cpus-per-client", str(cpus_per_client)]
    for key, value in settings.items():
        command += ["-c", f"{key}={value}"]
    return command


@contextmanager
def private_environment():
    """Yield an environment with a temporary folder of its own, and that folder."""
    # Ray's sockets live below it: the path must be short.
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield os.environ | {"TMPDIR": folder, "COLUMNS": "200"}, Path(folder)


def processes_of(folder):
    """Return the command lines of processes that have to do with the folder.

    It is named in their environment, or a file in it is their working directory or
    still open, be it deleted: Ray's agents write over their environment.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            traces = (
                (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            )
            traces = [v for v in traces if v.startswith(("FLWR_HOME=", "FEDBNN_RUN_"))]
            traces += [
                os.readlink(link) for link in [*(entry / "fd").iterdir(), entry / "cwd"]
            ]
            if any(f"{folder}/" in trace for trace in traces):
                found.append((entry / "cmdline").read_bytes().strip(b"\0").decode())
        except OSError:
            continue
    return [line for line in found if line]


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    """Return a function that runs `fedbnn run` and collects what it left."""

    def run(clients=4, **overrides):
        base = tmp_path_factory.mktemp("r")
        with private_environment() as (environment, temporary):
            done = subprocess.run(
                run_command(base / "runs", clients, **overrides),
                env=environment,
                capture_output=True,
                text=True,
                timeout=400,
            )
            leftovers = processes_of(temporary)
            leftovers += [str(path) for path in temporary.iterdir()]
        folders = sorted((base / "runs").glob("*"))
        return FinishedRun(
            done.returncode,
            done.stdout + done.stderr,
            RunDirectory(folders[0]) if folders else None,
            leftovers,
        )

    return run


@pytest.fixture(scope="session")
def first(small_run, tmp_path_factory):
    """Return a run of the usual settings, undisturbed, done once for all workers."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    result = shared / "first-run.json"
    with (shared / "first-run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            run = small_run()
            place = run.directory and str(run.directory.path)
            content = [run.returncode, run.output, place, run.leftovers]
            result.write_text(json.dumps(content))
    code, output, place, leftovers = json.loads(result.read_text())
    directory = RunDirectory(Path(place)) if place else None
    return FinishedRun(code, output, directory, leftovers)

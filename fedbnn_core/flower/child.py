"""Run one of Flower's commands as a child that never outlives its parent."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fedbnn_core.errors import RunError

__all__ = [
    "die_with_parent",
    "fleet_environment",
    "flower_command",
    "flower_environment",
    "loopback_exemption",
    "started",
    "stop",
]

_GRACE_SECONDS = 15.0
_PR_SET_PDEATHSIG = 1
_EXEMPTIONS = ("no_proxy", "NO_PROXY")


def flower_command(name: str) -> str:
    """Return Flower's command `name` of this very Python environment."""
    beside = Path(sys.executable).parent / name
    command = str(beside) if beside.is_file() else shutil.which(name)
    if command is None:
        raise RunError(
            f"Flower's command {name} is not installed here; install it with: "
            "pip install 'fedbnn[device]'"
        )
    return command


def flower_environment(home: Path) -> dict[str, str]:
    """Return the environment for Flower: quiet, offline, with its files in `home`."""
    return {
        **os.environ,
        # Flower looks for its other commands on the path.
        "PATH": os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        ),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PYTHONUNBUFFERED": "1",
        **loopback_exemption(),
    }


def fleet_environment(home: Path) -> dict[str, str]:
    """Return the environment for a fleet's Flower; the user's own settings win."""
    return {
        # The longest pause between two looks for work, on devices less: short_waits.
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
        # Every array is an object that travels on its own. More of them at once, up
        # to the number of cores, pays where the way to the server is long.
        "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS": "8",
        "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES": "8",
        **flower_environment(home),
    }


def loopback_exemption() -> dict[str, str]:
    """Return the settings that keep loopback connections away from any proxy.

    Flower's processes of one host talk over loopback. Programs differ in which of the
    two spellings they read first, so both hold what either of them says.
    """
    said = [os.environ.get(name, "") for name in _EXEMPTIONS]
    names = ",".join((*said, "localhost,127.0.0.1,::1")).split(",")
    value = ",".join(dict.fromkeys(name.strip() for name in names if name.strip()))
    return dict.fromkeys(_EXEMPTIONS, value)


@contextmanager
def started(
    command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Start a child in a process group of its own; end the group on leaving.

    Its standard output and error come together in ``stdout``, line by line.
    """
    with subprocess.Popen(  # noqa: S603
        list(command),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=die_with_parent,
    ) as process:
        try:
            yield process
        finally:
            stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    """End a child and its own children: politely, and after a while by force."""
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent dies, even by kill -9."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

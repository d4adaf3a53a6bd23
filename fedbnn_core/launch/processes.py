"""Find and end all processes of one run.

Flower detaches its local SuperLink and Ray starts helpers of its own, so neither
process groups nor parent ids lead to them. They all inherit one environment variable
with the run's private folder, which marks them.
"""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

__all__ = ["end_marked_processes", "marked_processes"]

_GRACE_SECONDS = 5.0


def marked_processes(variable: str, value: str) -> list[int]:
    """Return the ids of other processes whose environment has ``variable=value``."""
    marker = f"{variable}={value}"
    proc = Path("/proc")
    if proc.is_dir():
        found = []
        for entry in proc.iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0")
                if marker.encode() in variables and not _is_zombie(entry):
                    found.append(int(entry.name))
        return found
    # macOS and the BSDs have no /proc; their ps prints the environment.
    listing = subprocess.run(
        ["/bin/ps", "axeww", "-o", "pid=,command="],
        capture_output=True,
        text=True,
        check=False,
    )
    return [
        int(line.split(maxsplit=1)[0])
        for line in listing.stdout.splitlines()
        if marker in line.split() and int(line.split(maxsplit=1)[0]) != os.getpid()
    ]


def _is_zombie(entry: Path) -> bool:
    return (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


def end_marked_processes(variable: str, value: str) -> None:
    """End them politely, and after five seconds by force."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _GRACE_SECONDS
        processes = marked_processes(variable, value)
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal_number)
        while processes and time.monotonic() < deadline:
            time.sleep(0.05)
            processes = marked_processes(variable, value)
        if not processes:
            return

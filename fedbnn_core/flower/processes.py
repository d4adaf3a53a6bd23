"""Find and end all processes of one run.

Flower detaches its local SuperLink and Ray starts helpers of its own, so no process
group holds them. They all inherit one environment variable with the run's private
folder, which marks them. Ray's agents write their title over their environment, so
children of marked processes count too, and are remembered when their parent is gone.
"""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["end_marked_processes", "marked_processes"]

_GRACE_SECONDS = 5.0


class _Process(NamedTuple):
    """One process; its start tells it from a later one with the same id."""

    id: int
    parent: int
    start: str
    marked: bool


def marked_processes(variable: str, value: str) -> list[int]:
    """Return the ids of other processes whose environment has ``variable=value``.

    Their children and children's children are among them.
    """
    return [process.id for process in _family(f"{variable}={value}", {})]


def end_marked_processes(variable: str, value: str) -> None:
    """End them politely, and after five seconds by force."""
    marker = f"{variable}={value}"
    known: dict[int, str] = {}
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _GRACE_SECONDS
        processes = _family(marker, known)
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.id, signal_number)
        while processes and time.monotonic() < deadline:
            time.sleep(0.05)
            processes = _family(marker, known)
        if not processes:
            return


def _family(marker: str, known: dict[int, str]) -> list[_Process]:
    """Return the marked, their descendants and the known; add them to the known."""
    living = [p for p in _processes(marker) if p.id != os.getpid()]
    for process in living:
        if process.marked:
            known[process.id] = process.start
    while True:
        family = [p for p in living if known.get(p.id) == p.start]
        ids = {p.id for p in family}
        children = [p for p in living if p.parent in ids and p.id not in ids]
        if not children:
            return family
        known.update((p.id, p.start) for p in children)


def _processes(marker: str) -> list[_Process]:
    """Return all processes that have not ended."""
    proc = Path("/proc")
    if not proc.is_dir():
        return _listed_processes(marker)
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # After the name in parentheses: state, parent, ..., start as 20th.
            stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if stat[0] == "Z":
                continue
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:  # another user's
                environment = []
            marked = marker.encode() in environment
            found.append(_Process(int(entry.name), int(stat[1]), stat[19], marked))
    return found


def _listed_processes(marker: str) -> list[_Process]:
    """Do the same where there is no /proc; ps of macOS and the BSDs tells it."""
    listing = subprocess.run(
        ["/bin/ps", "axeww", "-o", "pid=,ppid=,command="],
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [line.split() for line in listing.stdout.splitlines()]
    return [_Process(int(r[0]), int(r[1]), "", marker in r[2:]) for r in rows]

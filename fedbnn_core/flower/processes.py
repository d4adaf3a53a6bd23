"""Find and end all processes of one run.

Flower detaches its local SuperLink and Ray starts helpers of its own, so no process
group holds them. They all inherit one environment variable with the run's private
folder, which marks them. Ray's agents write their title over their environment, so
children of marked processes count too, and are remembered when their parent is gone.
"""

import contextlib
import os
import signal
import time
from typing import NamedTuple

import psutil

__all__ = ["end_marked_processes", "marked_processes"]

_GRACE_SECONDS = 5.0


class _Process(NamedTuple):
    """One process; its start tells it from a later one with the same id."""

    id: int
    parent: int
    start: float
    marked: bool


def marked_processes(variable: str, value: str) -> list[int]:
    """Return the ids of other processes whose environment has ``variable=value``.

    Their children and children's children are among them.
    """
    return [process.id for process in _family((variable, value), {})]


def end_marked_processes(variable: str, value: str) -> None:
    """End them politely, and after five seconds by force."""
    marker = variable, value
    known: dict[int, float] = {}
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


def _family(marker: tuple[str, str], known: dict[int, float]) -> list[_Process]:
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


def _processes(marker: tuple[str, str]) -> list[_Process]:
    """Return all processes that have not ended."""
    variable, value = marker
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error), process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            try:
                marked = process.environ().get(variable) == value
            except psutil.AccessDenied:  # another user's
                marked = False
            start = process.create_time()
            found.append(_Process(process.pid, process.ppid(), start, marked))
    return found

"""Measure how much memory a runtime holds while it runs a network (Linux only)."""

import ctypes
import gc
import multiprocessing
from contextlib import suppress
from pathlib import Path

from fedbnn_core.speed.runtimes import contenders

__all__ = ["peak_memory", "status_bytes"]

_STATUS = Path("/proc/self/status")


def peak_memory(
    model: str, *, threads: int = 1, batch: int = 1, kernel: str = "auto"
) -> dict[str, int | None]:
    """Return the bytes that each contender holds at its peak; None where unknown.

    Each is measured in a process of its own: its peak while it runs, less what is left
    when it is gone. The libraries' code does not count.
    """
    context = multiprocessing.get_context("spawn")
    settings = (model, threads, batch, kernel)
    sizes: dict[str, int | None] = {}
    names = ["packed"]
    while names:
        name = names.pop(0)
        with context.Pool(1) as pool:
            sizes[name], others = pool.apply(_held, (name, *settings))
        if name == "packed":
            names = others
    return sizes


def _held(
    name: str, model: str, threads: int, batch: int, kernel: str
) -> tuple[int | None, list[str]]:
    """Return the bytes that one contender holds, and the names of the others."""
    runners, packed = contenders(model, threads=threads, batch=batch, kernel=kernel)
    wanted = runners.pop(name)
    others = list(runners)
    if not _STATUS.exists():
        return None, others
    del runners, packed
    _give_back()
    Path("/proc/self/clear_refs").write_text("5")  # starts a new peak
    for _ in range(5):
        wanted()
    peak = status_bytes("VmHWM")
    del wanted
    _give_back()
    return peak - status_bytes("VmRSS"), others


def _give_back() -> None:
    """Return freed memory to the system, where the C library can."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def status_bytes(key: str) -> int:
    """Return what Linux says of this process's memory: VmHWM is its peak."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(key):
            return 1024 * int(line.split()[1])
    return 0

"""Spread independent pieces of work over the processors, one torch thread each."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

__all__ = ["map_in_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_WORKERS = 8


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item]
) -> list[Result]:
    """Return ``[function(item) for item in items]``, computed side by side.

    Within a piece torch uses one thread. That suits many small operations, and it
    makes the bits independent of the number of processors: torch's own threads split
    sums differently on every machine.
    """
    before = torch.get_num_threads()
    workers = min(_MAX_WORKERS, _processors())
    try:
        # Each thread has its own setting, so every worker makes it.
        with ThreadPoolExecutor(
            workers, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            return list(pool.map(function, items))
    finally:
        torch.set_num_threads(before)


def _processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

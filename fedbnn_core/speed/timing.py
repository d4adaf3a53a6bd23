"""Time several runners in turn, and read the clock of the core they run on."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Runner", "Timing", "best_times", "clock_hz"]

WINDOW_SECONDS = 0.004

Runner = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Best time of one contender."""

    ms: float
    windows: int


def clock_hz() -> float | None:
    """Return the present clock of this core, from a chain of dependent additions."""
    from fedbnn_core.packed.model import _native

    seconds = None if _native is None else _native.cycle_chain()
    return None if not seconds else 2**20 / seconds


def best_times(
    runners: Mapping[str, Runner],
    *,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time all runners in turn, in short windows, and keep the best of each.

    Other work on the machine slows whole stretches of time; short windows in turn let
    every runner have its share of the quiet ones.

    Parameters
    ----------
    runners : what to time, by name.
    rounds : windows of each runner.
    clock : seconds. ``time.thread_time`` leaves out the time in which the calling
        thread had to wait for a CPU: right for runners that use no other thread.
    """
    repeats = {}
    for name, runner in runners.items():
        runner()
        started = clock()
        runner()
        once = clock() - started
        repeats[name] = max(1, round(WINDOW_SECONDS / max(once, 1e-7)))
    best = dict.fromkeys(runners, float("inf"))
    for _ in range(rounds):
        for name, runner in runners.items():
            started = clock()
            for _ in range(repeats[name]):
                runner()
            spent = (clock() - started) / repeats[name]
            best[name] = min(best[name], spent)
    return {name: Timing(1e3 * spent, rounds) for name, spent in best.items()}

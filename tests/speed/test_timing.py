"""Windows in turn, and a clock that is no nonsense."""

from functools import partial

import pytest

from fedbnn_core.speed.timing import WINDOW_SECONDS, best_times, clock_hz


def test_every_runner_gets_its_windows_in_turn() -> None:
    order: list[str] = []
    seconds = {"a": 2 * WINDOW_SECONDS, "b": WINDOW_SECONDS / 2}
    runners = {name: partial(order.append, name) for name in seconds}
    times = best_times(
        runners, rounds=3, clock=lambda: sum(seconds[name] for name in order)
    )
    # Each runs twice to see how often it fits into a window.
    assert order == ["a", "a", "b", "b"] + ["a", "b", "b"] * 3
    for name, timing in times.items():
        assert timing.ms == pytest.approx(1e3 * seconds[name])
        assert timing.windows == 3


def test_clock_is_plausible() -> None:
    hz = clock_hz()
    assert hz is None or 1e7 < hz < 1e10

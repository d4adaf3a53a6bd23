"""Windows in turn, and a clock that is no nonsense."""

from fedbnn_core.speed.timing import best_times, clock_hz


def test_every_runner_gets_its_windows_in_turn() -> None:
    order: list[str] = []

    def slow(name: str) -> None:
        order.append(name)
        sum(range(200_000))  # longer than a window: one call per window

    times = best_times({"a": lambda: slow("a"), "b": lambda: slow("b")}, rounds=3)
    assert order[-6:] == ["a", "b"] * 3
    assert times["a"].ms > 0


def test_clock_is_plausible() -> None:
    hz = clock_hz()
    assert hz is None or 1e7 < hz < 1e10

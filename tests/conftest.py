"""Settings for all tests of the core."""

import os
import re
from collections.abc import Callable, Iterator

import pytest
import torch

# Ray gives its workers a low priority; beside other tests they would only wait.
os.environ.setdefault("RAY_worker_niceness", "0")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Train small networks on one thread: more of them only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--training-seeds",
        type=int,
        default=1,
        help="with how many seeds tests train whose thresholds depend on training",
    )
    parser.addoption(
        "--object-trees",
        type=int,
        default=2000,
        help="how many malformed messages are tried on the code that fetches replies",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that asks for a training seed as many as are wanted."""
    if "training_seed" in metafunc.fixturenames:
        count = metafunc.config.getoption("training_seeds")
        metafunc.parametrize("training_seed", range(count))


@pytest.fixture
def margin(record_property: Callable[[str, object], None]) -> Callable[[float], None]:
    """Ask that a value is above 0: how far a trained model is from a threshold.

    The smallest of each test, over all seeds, is printed at the end.
    """

    def ask(value: float) -> None:
        record_property("margin", float(value))
        assert value > 0

    return ask


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    smallest: dict[str, list[float]] = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            margins = [v for k, v in report.user_properties if k == "margin"]
            if margins and report.when == "call":
                # The seed is the first parameter of a test, or its only one.
                name = re.sub(r"\[\d+-?", "[", report.nodeid).replace("[]", "")
                smallest.setdefault(name, []).append(min(margins))
    if smallest:
        terminalreporter.section("smallest margin, and of how many seeds")
    for name, margins in sorted(smallest.items()):
        terminalreporter.write_line(f"{min(margins):7.3f} {len(margins):4} {name}")

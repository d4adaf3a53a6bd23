"""Settings for all tests of the core."""

from collections.abc import Iterator

import pytest
import torch


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

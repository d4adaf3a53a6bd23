"""Local differential privacy: the accountant's epsilon and its ledger."""

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedbnn_core.config import RunConfig
from fedbnn_core.errors import RunError
from fedbnn_core.server.privacy import ClientAccountant, create_accountant

pytest.importorskip("dp_accounting")


def exact_epsilon(noise_multiplier, releases, delta):
    """Return epsilon of composed Gaussian mechanisms, exactly.

    They equal one of noise multiplier z / sqrt(releases), whose delta is
    Phi(1/2s - eps s) - e^eps Phi(-1/2s - eps s) (Balle and Wang, 2018).
    """
    s = noise_multiplier / math.sqrt(releases)

    def excess(epsilon):
        tail = norm.logcdf(-1 / (2 * s) - epsilon * s)
        return norm.cdf(1 / (2 * s) - epsilon * s) - math.exp(epsilon + tail) - delta

    return brentq(excess, 0.0, 500.0)


@pytest.mark.parametrize(("z", "rounds"), [(2.0, 1), (10.0, 1), (10.0, 20), (4.0, 7)])
def test_epsilon_bounds_the_exact_one_closely(z, rounds):
    accountant = ClientAccountant(noise_multiplier=z, delta=1e-5)
    for _ in range(rounds):
        accountant.record([3])
    # A client's data replaced by other data moves the update by twice the clip norm.
    exact = exact_epsilon(z / 2, rounds, 1e-5)
    assert exact <= accountant.epsilon() <= 1.15 * exact


def test_epsilon_is_that_of_the_busiest_client():
    accountant = ClientAccountant(noise_multiplier=5.0, delta=1e-5)
    assert accountant.epsilon() == 0.0
    for clients in ([1, 2], [2, 3], [2, 4]):
        accountant.record(clients)
    three = ClientAccountant(noise_multiplier=5.0, delta=1e-5)
    for _ in range(3):
        three.record([9])
    assert accountant.epsilon() == three.epsilon()


def keeping(path):
    accountant = ClientAccountant(noise_multiplier=5.0, delta=1e-5)
    accountant.use_ledger(path)
    return accountant


def test_releases_are_on_disk_before_anybody_is_asked(tmp_path):
    path = tmp_path / "privacy.jsonl"
    first = keeping(path)
    first.record([1, 2])
    first.record([2])
    assert path.read_text() == "[1, 2]\n[2]\n"
    # Half a line: the process died while writing, so nobody was asked.
    path.write_text(path.read_text() + "[2, 1")
    second = keeping(path)
    assert (second.epsilon(), second.releases()) == (first.epsilon(), 3)
    second.record([2])
    assert path.read_text() == "[1, 2]\n[2]\n[2]\n"
    three = ClientAccountant(noise_multiplier=5.0, delta=1e-5)
    for _ in range(3):
        three.record([9])
    assert second.epsilon() == three.epsilon()


@pytest.mark.parametrize("text", ["[1]\nnonsense\n", '[1]\n["x"]\n', "[1]\n7\n"])
def test_damaged_ledger_is_no_reason_to_forget(tmp_path, text):
    path = tmp_path / "privacy.jsonl"
    path.write_text(text)
    with pytest.raises(RunError, match=r"line 2 of .* is damaged"):
        keeping(path)


def test_only_private_runs_have_an_accountant():
    assert create_accountant(RunConfig.from_mapping({}, complete=False)) is None

"""Rounding at random: the random numbers, their independence and the mean."""

import numpy as np
import pytest
import torch

from fedbnn_core.binary.rounding import (
    LEVELS,
    epoch_key,
    round_gradient,
    step_key,
    uniform,
)

KEYS = [(0, 0), (1, 2), (0xFFFFFFFF, 0x80000001)]


def reference_uniform(count: int, key: tuple[int, int]) -> np.ndarray:
    """Return the numbers of counters 0, 1, ... in plain 32-bit arithmetic."""
    numbers = []
    for counter in range(count):
        h = (counter + key[0]) % 2**32
        h = (h ^ (h >> 16)) * 0x7FEB352D % 2**32
        h = (h ^ (h >> 15) ^ key[1]) * 0x846CA68B % 2**32
        numbers.append(((h ^ (h >> 16)) >> 8) / 2**24)
    return np.array(numbers, dtype=np.float32)


@pytest.mark.parametrize("key", KEYS)
def test_random_numbers_are_those_of_the_formula(key: tuple[int, int]) -> None:
    shape = torch.Size((2, 3, 4, 5))
    u = uniform(shape, key, torch.device("cpu"))
    expected = reference_uniform(2 * 4 * 5 * 3, key).reshape(2, 4, 5, 3)
    assert np.array_equal(u.permute(0, 2, 3, 1).numpy(), expected)


def test_random_numbers_are_uniform_and_uncorrelated_between_keys() -> None:
    shape = torch.Size((1, 1, 256, 256))
    draws = torch.stack(
        [
            uniform(shape, step_key(epoch_key(seed, layer), step), torch.device("cpu"))
            for seed in (0, 1)
            for layer in (0, 1)
            for step in (0, 1)
        ]
    ).reshape(8, -1)
    n = draws.shape[1]
    assert (draws.mean(dim=1) - 0.5).abs().max() < 6 * (1 / 12 / n) ** 0.5
    correlation = torch.corrcoef(draws) - torch.eye(8)
    assert correlation.abs().max() < 6 / n**0.5
    neighbours = torch.corrcoef(torch.stack((draws[0, 1:], draws[0, :-1])))[0, 1]
    assert abs(neighbours) < 6 / n**0.5


@pytest.mark.parametrize("bits", LEVELS)
def test_rounding_is_right_on_average(bits: int) -> None:
    grad = torch.randn(1, 4, 5, 5, generator=torch.Generator().manual_seed(bits))
    repeats = 400
    total = torch.zeros_like(grad)
    for step in range(repeats):
        q, scale = round_gradient(grad, bits, step_key(7, step))
        assert torch.equal(q, q.round())
        assert q.abs().max() <= LEVELS[bits]
        assert ((q * scale - grad).abs() <= scale * 1.0001).all()
        total += q * scale
    # A rounded value's variance is at most scale^2 / 4.
    assert (total / repeats - grad).abs().max() < 6 * float(scale) / 2 / repeats**0.5


def test_zero_and_nonfinite_gradients() -> None:
    q, scale = round_gradient(torch.zeros(1, 2, 3, 3), 8, (1, 2))
    assert not q.any()
    assert float(scale) == 0.0
    for bad in (float("nan"), float("inf")):
        grad = torch.ones(1, 1, 2, 2)
        grad[0, 0, 1, 1] = bad
        q, scale = round_gradient(grad, 8, (1, 2))
        assert not (q * scale).isfinite().any()

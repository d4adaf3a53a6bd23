"""Standardization, scalars and the server's mixed weight against plain formulas."""

import math

import numpy as np
import pytest
import torch

from fedbnn_core.binary.mixing import (
    angle_share,
    client_share,
    fused_weight,
    mixed_weight,
    mixing_scalars,
    standardize_filters,
)
from tests.binary.reference import standardized


@pytest.mark.parametrize("shape", [(4, 3, 3, 3), (2, 1, 7, 7), (6, 8), (3, 2, 1, 1)])
def test_standardization_equals_numpy(shape: tuple[int, ...]) -> None:
    w = np.random.default_rng(3).normal(2.0, 0.7, shape)
    given = torch.tensor(w)
    out = standardize_filters(given)
    np.testing.assert_allclose(out.numpy(), standardized(w), rtol=1e-12)
    np.testing.assert_array_equal(given.numpy(), w)


def test_standardization_reads_any_memory_layout() -> None:
    w = np.random.default_rng(3).normal(size=(4, 3, 3, 3))
    given = torch.tensor(w).to(memory_format=torch.channels_last)
    np.testing.assert_allclose(standardize_filters(given).numpy(), standardized(w))


def test_a_filter_of_one_weight_is_not_standardized() -> None:
    w = torch.tensor([[[[2.5]]], [[[-0.1]]]])
    assert torch.equal(standardize_filters(w), w)


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3])
def test_a_constant_filter_standardizes_to_almost_nothing(value: float) -> None:
    out = standardize_filters(torch.full((2, 3, 3, 3), value))
    assert out.abs().max() < 0.1


@pytest.mark.parametrize("omega", [-800.0, -3.0, 0.0, 0.4, 50.0])
@pytest.mark.parametrize("angle", [-2.0, 0.0, math.pi / 4, 4.0])
def test_client_and_server_map_the_scalars_alike(omega: float, angle: float) -> None:
    server = mixing_scalars(omega, angle, 1.0 - angle)
    lam = math.exp(min(omega, 0)) / (1 + math.exp(-abs(omega)))
    assert server.lam == pytest.approx(lam, abs=1e-15)
    assert server.alpha == pytest.approx(abs(math.sin(angle)), abs=1e-15)
    assert server.beta == pytest.approx(abs(math.sin(1.0 - angle)), abs=1e-15)
    client = client_share(torch.tensor(omega)), angle_share(torch.tensor(angle))
    assert client[0].item() == pytest.approx(server.lam, abs=1e-6)
    assert client[1].item() == pytest.approx(server.alpha, abs=1e-6)


def test_without_alignment_the_server_is_left_out() -> None:
    scalars = mixing_scalars(0.3, 0.5, 0.7, server_alignment=False)
    assert (scalars.beta, scalars.lam) == (1.0, 1.0)
    assert scalars.alpha == pytest.approx(math.sin(0.5))


@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0])
def test_the_fused_weight_lies_between_client_and_server(lam: float) -> None:
    rng = np.random.default_rng(4)
    local, server = rng.normal(size=(2, 3, 2, 2, 2))
    fused = fused_weight(
        torch.tensor(local), torch.tensor(server), torch.tensor(lam).double()
    )
    expected = np.float32(lam) * local + (1 - np.float32(lam)) * server
    np.testing.assert_allclose(fused.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("alpha", "beta"), [(0, 0.5), (1, 1), (1, 0), (0.3, 0.8)])
def test_the_mixed_weight_is_a_convex_combination(alpha: float, beta: float) -> None:
    rng = np.random.default_rng(5)
    z, rotated, server = rng.normal(size=(3, 4, 2, 3, 3))
    mixed = mixed_weight(
        torch.tensor(z), torch.tensor(rotated), torch.tensor(server), alpha, beta
    )
    expected = (1 - alpha) * z + alpha * beta * rotated + alpha * (1 - beta) * server
    np.testing.assert_allclose(mixed.numpy(), expected, rtol=1e-12, atol=1e-12)

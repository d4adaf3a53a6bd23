"""FedBAT's operator against its formulas, written out element by element."""

import math

import numpy as np
import pytest
import torch

from fedbnn_core.training.sign_update import (
    BinaryUpdate,
    stochastic_sign,
)


def reference(x, alpha, uniform):
    """b = clamp(floor((x/alpha + 1)/2 + U), 0, 1), S = alpha (2b - 1)."""
    b = min(max(math.floor((x / alpha + 1) / 2 + uniform), 0), 1)
    return alpha * (2 * b - 1)


def reference_gradients(x, signed, alpha, g):
    dx, dalpha = [], 0.0
    for x_i, s_i, g_i in zip(x, signed, g, strict=True):
        inside = abs(x_i) <= alpha
        dx.append(g_i if inside else 0.0)
        if x_i > alpha:
            c = 1.0
        elif x_i < -alpha:
            c = -1.0
        else:
            c = (s_i - x_i) / alpha
        dalpha += g_i * c
    return dx, dalpha


def test_forward_equals_the_formula_for_every_region():
    # Multiples of 1/8: exact in float32, so no draw sits on a rounding edge.
    x = [i / 8 for i in range(-16, 17)]
    uniforms = [0.0, 0.125, 0.5, 0.875, 1 - 2**-24]
    for u in uniforms:
        got = stochastic_sign(torch.tensor(x), torch.tensor(0.5), torch.tensor(u))
        assert got.tolist() == [reference(value, 0.5, u) for value in x]


def test_mean_over_many_draws_is_the_clipped_value():
    generator = torch.Generator().manual_seed(3)
    x = torch.tensor([-0.03, -0.02, -0.013, -0.001, 0.0, 0.004, 0.0199, 0.02, 0.5])
    alpha, draws = 0.02, 200_000
    uniform = torch.rand((draws, len(x)), generator=generator)
    mean = stochastic_sign(x.expand(draws, -1), torch.tensor(alpha), uniform).mean(0)
    clipped = np.clip(x.numpy(), -alpha, alpha)
    # Five standard errors of a +-alpha coin.
    assert np.abs(mean.numpy() - clipped).max() < 5 * alpha / math.sqrt(draws)
    # Beyond +-alpha nothing is left to chance.
    assert mean[0] == pytest.approx(-alpha)
    assert mean[-1] == pytest.approx(alpha)


def test_gradient_of_the_step_size_by_hand():
    """x = (0.5, -0.25, 3, -2), alpha = 1, U = (0, 0.9, 0.5, 0.5), g = (1, 2, 3, 4).

    q = (0.75, 0.375, 2, -0.5), so S = (-1, 1, 1, -1) and c = (-1.5, 1.25, 1, -1):
    dL/dalpha = -1.5 + 2.5 + 3 - 4 = 0, with g_4 = 5 instead it is -1.
    """
    for last, expected in ((4.0, 0.0), (5.0, -1.0)):
        x = torch.tensor([0.5, -0.25, 3.0, -2.0], requires_grad=True)
        alpha = torch.tensor(1.0, requires_grad=True)
        signed = stochastic_sign(x, alpha, torch.tensor([0.0, 0.9, 0.5, 0.5]))
        assert signed.tolist() == [-1.0, 1.0, 1.0, -1.0]
        signed.backward(torch.tensor([1.0, 2.0, 3.0, last]))
        assert alpha.grad.item() == pytest.approx(expected, abs=1e-6)
        assert x.grad.tolist() == [1.0, 2.0, 0.0, 0.0]


def test_gradients_equal_the_formula_on_random_values():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(200, generator=generator).requires_grad_()
    alpha = torch.tensor(0.7, requires_grad=True)
    g = torch.randn(200, generator=generator)
    signed = stochastic_sign(x, alpha, torch.rand(200, generator=generator))
    signed.backward(g)
    dx, dalpha = reference_gradients(
        x.tolist(), signed.tolist(), alpha.item(), g.tolist()
    )
    assert x.grad.tolist() == pytest.approx(dx)
    assert alpha.grad.item() == pytest.approx(dalpha, rel=1e-5)


@pytest.mark.parametrize(
    ("mean_m", "a", "alpha"),
    [
        (0.01, 0.0, 0.01),
        (0.01, 0.1, 0.01 * math.exp(0.6)),
        (1e-5, 0.0, 5e-4),
        (0.2, 0.0, 5e-2),
    ],
)
def test_step_size_and_its_chain_rule(mean_m, a, alpha):
    """dL/da~ = rho * alpha * dL/dalpha, and 0 where the clamp holds alpha."""
    update = BinaryUpdate(torch.zeros(2, 2), rho=6.0)
    with torch.no_grad():
        update.m.copy_(torch.tensor([[mean_m, -mean_m], [2 * mean_m, 0.0]]))
    update.begin_signs()
    with torch.no_grad():
        update.a.fill_(a)
    step = update.step_size()
    assert step.item() == pytest.approx(alpha, rel=1e-6)
    (3.0 * step).backward()
    clamped = alpha in (5e-4, 5e-2)
    expected = 0.0 if clamped else 3.0 * 6.0 * alpha
    assert update.a.grad.item() == pytest.approx(expected, rel=1e-5)


def test_update_is_real_in_the_warm_up_and_signed_after_it():
    update = BinaryUpdate(torch.zeros(40, 30), rho=6.0)
    update.begin_round(seed=1)
    with torch.no_grad():
        update.m.normal_(0.0, 0.01, generator=torch.Generator().manual_seed(0))
    assert torch.equal(update.update(), update.m)
    update.begin_signs()
    alpha = update.m.abs().mean().item()
    first, second = update.update(), update.update()
    for drawn in (first, second):
        assert drawn.abs().flatten().tolist() == pytest.approx([alpha] * 1200)
    assert not torch.equal(first, second)
    update.begin_round(seed=1)
    assert update.m.abs().max() == 0
    assert torch.equal(update.update(), update.m)


def test_draws_depend_on_the_seed_only():
    def upload(seed):
        update = BinaryUpdate(torch.zeros(50, 50), rho=6.0)
        update.begin_round(seed)
        with torch.no_grad():
            update.m.normal_(0.0, 0.01, generator=torch.Generator().manual_seed(0))
        return update.draw()

    first, again, other = upload(1), upload(1), upload(2)
    assert np.array_equal(first[0], again[0])
    assert not np.array_equal(first[0], other[0])
    assert first[1] == other[1]

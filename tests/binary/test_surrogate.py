"""The sign, its surrogate gradient and the sharpness clock against their formulas."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedbnn_core.binary.surrogate import (
    Sharpness,
    activation_sign,
    sign,
    surrogate_gradient,
)


def slope(x: float, t: float, k: float) -> float:
    """F'(x) as METHOD.md states it."""
    return max(k * (math.sqrt(2) * t - t * t * abs(x)), 0.0)


@pytest.mark.parametrize("x", [0.0, -0.0, 1e-30, 5.0, float("inf")])
def test_sign_of_zero_and_above_is_plus_one(x: float) -> None:
    assert sign(torch.tensor([x])).tolist() == [1.0]


@pytest.mark.parametrize("x", [-1e-30, -1e-44, -5.0, -float("inf")])
def test_sign_below_zero_is_minus_one(x: float) -> None:
    assert sign(torch.tensor([x])).tolist() == [-1.0]


def test_sign_leaves_its_input_alone() -> None:
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    sign(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("t", "k", "x", "value"),
    [
        (0.01, 100.0, 0.0, 1.41421),
        (0.01, 100.0, 1.0, 1.40421),
        (1.0, 1.0, 0.5, 0.91421),
        (1.0, 1.0, -0.5, 0.91421),
        (1.0, 1.0, 1.5, 0.0),
        (10.0, 1.0, 0.1, 4.14214),
        (10.0, 1.0, 0.2, 0.0),
    ],
)
def test_surrogate_has_the_published_values(
    t: float, k: float, x: float, value: float
) -> None:
    out = surrogate_gradient(torch.tensor([x]), t, k)
    assert out.item() == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("t", [0.01, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("k", [1.0, 3.5])
def test_surrogate_equals_the_formula(t: float, k: float) -> None:
    x = np.concatenate([np.linspace(-3, 3, 601), [0.0, -0.0, math.sqrt(2) / t, 1e6]])
    expected = np.vectorize(lambda v: slope(v, t, k))(x)
    out = surrogate_gradient(torch.tensor(x), t, k)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("rounds", "epochs"), [(1, 1), (30, 5), (7, 3)])
def test_t_follows_one_global_clock(rounds: int, epochs: int) -> None:
    step, ts = 0, []
    for r in range(rounds):
        for e in range(epochs):
            t = Sharpness.at(r, rounds, e, epochs).t
            assert math.log10(t) == pytest.approx(-2 + 3 * step / (rounds * epochs))
            ts.append(t)
            step += 1
    assert ts == sorted(ts)
    assert ts[0] == pytest.approx(0.01)
    assert ts[-1] < 10.0


def test_t_is_one_at_two_thirds_of_the_run() -> None:
    assert Sharpness.at(20, 30, 0, 5).t == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("t", "weight", "activation"),
    [
        (0.01, (0.01, 100.0), (1.0, 1.0)),
        (0.5, (0.5, 2.0), (1.0, 1.0)),
        (1.0, (1.0, 1.0), (1.0, 1.0)),
        (10.0, (10.0, 1.0), (10.0, 1.0)),
    ],
)
def test_weights_and_activations_have_their_own_t_and_k(
    t: float, weight: tuple[float, float], activation: tuple[float, float]
) -> None:
    assert Sharpness(t).weight == pytest.approx(weight)
    assert Sharpness(t).activation == pytest.approx(activation)


@pytest.mark.parametrize("t", [0.01, 1.0, 4.0])
@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_activation_sign_forward_and_gradient(
    t: float, clamp: bool, shift: float
) -> None:
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.normal(0, 1, 80), [0.0, -0.0, 1.0, -1.0, 0.99, -0.99]])
    x = torch.tensor(values, requires_grad=True)
    upstream = rng.normal(size=values.shape)
    out = activation_sign(x, sharpness=Sharpness(t), clamp=clamp, shift=shift)
    out.backward(torch.tensor(upstream))

    forward = [(1.0 if v >= 0 else -1.0) - shift for v in values]
    np.testing.assert_array_equal(out.detach().numpy(), forward)
    used_t = max(t, 1.0)
    backward = [
        0.0 if clamp and abs(v) >= 1 else g * slope(v, used_t, 1.0)
        for v, g in zip(values, upstream, strict=True)
    ]
    np.testing.assert_allclose(x.grad.numpy(), backward, rtol=1e-12, atol=1e-12)


def test_clamp_equals_a_hardtanh_before_the_sign() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, 3, 5, 5, generator=generator, dtype=torch.float64)
    fused, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    sharp = Sharpness(0.5)
    one = activation_sign(fused, sharpness=sharp, clamp=True)
    two = activation_sign(F.hardtanh(plain), sharpness=sharp, clamp=False)
    upstream = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    one.backward(upstream)
    two.backward(upstream)
    assert torch.equal(one, two)
    torch.testing.assert_close(fused.grad, plain.grad)

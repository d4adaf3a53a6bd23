"""The mixed weight and its gradient against formulas and finite differences."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedbnn_core.binary.mixing import STD_EPS, mixed_sign
from fedbnn_core.binary.rotation import common_start, factor_pair
from fedbnn_core.binary.surrogate import Sharpness
from tests.binary.reference import standardized


def slope(x: float, t: float, k: float) -> float:
    """F'(x) as METHOD.md states it."""
    return max(k * (math.sqrt(2) * t - t * t * abs(x)), 0.0)


def smooth_sign(x: np.ndarray, t: float, k: float) -> np.ndarray:
    """F(x), the antiderivative of F' with F(0) = 0: the sign that F' belongs to."""
    size = np.minimum(np.abs(x), math.sqrt(2) / t)
    return np.sign(x) * k * (math.sqrt(2) * t * size - t * t * size**2 / 2)


def mixed_weight(
    w: np.ndarray,
    lam: float,
    alpha: float,
    beta: float,
    w_server: np.ndarray,
    rotation: tuple[torch.Tensor, torch.Tensor],
) -> np.ndarray:
    """w~ with the rotation as one explicit matrix."""
    fused = standardized(lam * w + (1 - lam) * w_server)
    r1, r2 = (r.double().numpy() for r in rotation)
    flat = fused.reshape(len(w), -1)
    rotated = (np.kron(r1, r2).T @ flat.T).T.reshape(w.shape)
    return (
        fused
        + alpha * beta * (rotated - fused)
        + alpha * (1 - beta) * (standardized(w_server) - fused)
    )


class Case:
    """A layer's weights, scalars and an upstream gradient, in float64."""

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        scalars: tuple[float, float, float],
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.w = rng.normal(0.05, 0.3, shape)
        self.w_server = self.w + rng.normal(0, 0.2, shape)
        self.upstream = rng.normal(size=shape)
        self.scalars = scalars
        n = self.w[0].size
        self.rotation = common_start(n, start="haar", seed=(seed, n))

    def tensors(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        lam, alpha, beta = (torch.tensor(s, dtype=dtype) for s in self.scalars)
        w = torch.tensor(self.w, dtype=dtype)
        named = {"w": w, "lam": lam, "alpha": alpha, "beta": beta}
        return {name: value.requires_grad_() for name, value in named.items()}

    def run(
        self,
        sharpness: Sharpness,
        dtype: torch.dtype = torch.float64,
        mix: Callable[..., torch.Tensor] = mixed_sign,
    ) -> tuple[torch.Tensor, dict[str, np.ndarray]]:
        """Return sign(w~) of the code under test and its gradients."""
        leaves = self.tensors(dtype)
        w_server = torch.tensor(self.w_server, dtype=dtype)
        r1, r2 = (r.to(dtype) for r in self.rotation)
        out = mix(
            leaves["w"],
            lam=leaves["lam"],
            alpha=leaves["alpha"],
            beta=leaves["beta"],
            w_server=w_server,
            z_server=torch.tensor(standardized(self.w_server), dtype=dtype),
            rotation=(r1, r2),
            sharpness=sharpness,
        )
        out.backward(torch.tensor(self.upstream, dtype=dtype))
        gradients = {name: leaf.grad.numpy() for name, leaf in leaves.items()}
        return out.detach(), gradients

    def smooth_loss(
        self, t: float, k: float, w: np.ndarray, scalars: tuple[float, ...]
    ) -> float:
        mixed = mixed_weight(w, *scalars, self.w_server, self.rotation)
        return float((self.upstream * smooth_sign(mixed, t, k)).sum())


SCALARS = [  # lambda, alpha, beta
    (0.5, math.sin(math.pi / 4), math.sin(math.pi / 4)),
    (0.3, 0.9, 0.2),
    (1.0, 0.6, 1.0),  # no server alignment
    (0.7, 1.0, 1.0),  # only the rotated path
    (0.5, 0.04, 0.03),  # hardly any rotation
    (0.5, 0.03, 0.03),
    (0.5, 0.001, 0.002),
    (0.5, 0.0, 0.5),
    (0.5, 0.8, 0.0),
    (0.5, 0.0, 0.0),
    (0.001, 0.5, 0.5),  # almost the server's weights alone
]
SHARPNESS = [1e-9, 0.01, 1.0, 2.5]  # the first makes F the straight line sqrt(2) x


@pytest.mark.parametrize("scalars", SCALARS)
@pytest.mark.parametrize("shape", [(5, 3, 3, 3), (4, 1, 7, 7), (6, 2, 1, 1)])
def test_forward_is_the_sign_of_the_mixed_weight(
    scalars: tuple[float, float, float], shape: tuple[int, int, int, int]
) -> None:
    case = Case(shape, scalars)
    mixed = mixed_weight(case.w, *scalars, case.w_server, case.rotation)
    out, _ = case.run(Sharpness(1.0))
    assert np.abs(mixed).min() > 1e-6  # no sign hangs on rounding
    np.testing.assert_array_equal(out.numpy(), np.where(mixed >= 0, 1.0, -1.0))


@pytest.mark.parametrize("t", SHARPNESS)
@pytest.mark.parametrize("scalars", SCALARS)
def test_gradients_equal_finite_differences(
    scalars: tuple[float, float, float], t: float
) -> None:
    """Move every weight and scalar of the loss <C, F(w~)>, F smooth with slope F'."""
    case = Case((3, 2, 3, 2), scalars, seed=5)
    k = max(1 / t, 1.0)
    _, gradients = case.run(Sharpness(t))
    h = 1e-6

    def difference(step_w: np.ndarray | float, step_s: np.ndarray) -> float:
        up = case.smooth_loss(t, k, case.w + step_w, tuple(scalars + step_s))
        down = case.smooth_loss(t, k, case.w - step_w, tuple(scalars - step_s))
        return (up - down) / (2 * h)

    still = np.zeros(3)
    for index in np.ndindex(case.w.shape):
        step = np.zeros_like(case.w)
        step[index] = h
        expected = difference(step, still)
        assert gradients["w"][index] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for position, name in enumerate(("lam", "alpha", "beta")):
        step = np.zeros(3)
        step[position] = h
        expected = difference(0.0, step)
        assert gradients[name] == pytest.approx(expected, rel=1e-4, abs=1e-5)


class SurrogateSign(torch.autograd.Function):
    """The sign as METHOD.md writes it, one plain formula each way."""

    @staticmethod
    def forward(ctx, x, t, k):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        ctx.t, ctx.k = t, k
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        inner = ctx.k * (math.sqrt(2) * ctx.t - ctx.t**2 * x.abs())
        return grad * inner.clamp_min(0), None, None


def autograd_reference(
    case: Case, sharpness: Sharpness
) -> tuple[torch.Tensor, dict[str, np.ndarray]]:
    leaves = case.tensors(torch.float64)

    def std(w: torch.Tensor) -> torch.Tensor:
        flat = w.reshape(w.shape[0], -1)
        flat = flat - flat.mean(dim=1, keepdim=True)
        return (flat / (flat.std(dim=1, keepdim=True) + STD_EPS)).reshape(w.shape)

    w_server = torch.tensor(case.w_server)
    lam, alpha, beta = leaves["lam"], leaves["alpha"], leaves["beta"]
    z = std(lam * leaves["w"] + (1 - lam) * w_server)
    n1, n2 = factor_pair(case.w[0].size)
    r1, r2 = (r.double() for r in case.rotation)
    rotated = torch.einsum("ji,ojk,kl->oil", r1, z.reshape(-1, n1, n2), r2)
    mixed = (
        (1 - alpha) * z
        + alpha * beta * rotated.reshape(z.shape)
        + alpha * (1 - beta) * std(w_server)
    )
    out = SurrogateSign.apply(mixed, *sharpness.weight)
    out.backward(torch.tensor(case.upstream))
    gradients = {name: leaf.grad.numpy() for name, leaf in leaves.items()}
    return out.detach(), gradients


@pytest.mark.parametrize("t", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("scalars", SCALARS)
@pytest.mark.parametrize("shape", [(32, 16, 3, 3), (8, 1, 7, 7)])
def test_gradients_equal_autograd_of_the_plain_formula(
    shape: tuple[int, int, int, int], scalars: tuple[float, float, float], t: float
) -> None:
    case = Case(shape, scalars, seed=6)
    expected_out, expected = autograd_reference(case, Sharpness(t))
    out, gradients = case.run(Sharpness(t))
    assert torch.equal(out, expected_out)
    for name, value in expected.items():
        np.testing.assert_allclose(
            gradients[name], value, rtol=1e-8, atol=1e-8 * np.abs(value).max()
        )


@pytest.mark.parametrize("scalars", SCALARS)
def test_float32_gradients_are_accurate(scalars: tuple[float, float, float]) -> None:
    case = Case((64, 32, 3, 3), scalars, seed=7)
    _, expected = autograd_reference(case, Sharpness(0.5))
    _, gradients = case.run(Sharpness(0.5), torch.float32)
    for name, value in expected.items():
        scale = np.linalg.norm(value) + 1e-9
        error = np.linalg.norm(gradients[name] - value) / scale
        # A scalar's gradient is a sum of 18,432 terms of either sign.
        assert error < (1e-5 if name == "w" else 1e-2), name


def test_lambda_zero_is_the_server_alone() -> None:
    case = Case((4, 3, 3, 3), (0.0, 0.5, 0.5), seed=12)
    mixed = mixed_weight(case.w_server, 1.0, 0.5, 0.5, case.w_server, case.rotation)
    out, gradients = case.run(Sharpness(1.0))
    np.testing.assert_array_equal(out.numpy(), np.where(mixed >= 0, 1.0, -1.0))
    assert not gradients["w"].any()
    assert np.isfinite(gradients["lam"])


def test_the_weight_may_have_any_memory_layout() -> None:
    case = Case((4, 3, 3, 3), SCALARS[0], seed=8)
    _, expected = case.run(Sharpness(1.0))
    w = torch.tensor(case.w).to(memory_format=torch.channels_last).requires_grad_()
    lam, alpha, beta = (torch.tensor(s, dtype=torch.float64) for s in case.scalars)
    r1, r2 = (r.double() for r in case.rotation)
    out = mixed_sign(
        w,
        lam=lam,
        alpha=alpha,
        beta=beta,
        w_server=torch.tensor(case.w_server),
        z_server=torch.tensor(standardized(case.w_server)),
        rotation=(r1, r2),
        sharpness=Sharpness(1.0),
    )
    out.backward(torch.tensor(case.upstream))
    np.testing.assert_allclose(w.grad.numpy(), expected["w"], rtol=1e-12, atol=1e-12)


def test_filters_of_one_weight_mix_without_standardization() -> None:
    scalars = (0.6, 0.5, 0.8)
    case = Case((7, 1, 1, 1), scalars, seed=9)
    mixed = mixed_weight(case.w, *scalars, case.w_server, case.rotation)
    out, gradients = case.run(Sharpness(1.0))
    np.testing.assert_array_equal(out.numpy(), np.where(mixed >= 0, 1.0, -1.0))
    r = float(case.rotation[0] * case.rotation[1])
    chain = scalars[0] * ((1 - scalars[1]) + scalars[1] * scalars[2] * r)
    slopes = np.vectorize(lambda v: slope(v, 1.0, 1.0))(mixed)
    np.testing.assert_allclose(
        gradients["w"], case.upstream * slopes * chain, rtol=1e-6, atol=1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e-30, -5.0])
def test_constant_filters_stay_finite(dtype: torch.dtype, value: float) -> None:
    case = Case((3, 2, 3, 3), SCALARS[0], seed=10)
    case.w[0] = case.w_server[0] = value
    case.w[1] = value  # constant here, not at the server
    out, gradients = case.run(Sharpness(0.01), dtype)
    assert set(np.unique(out.numpy())) <= {-1.0, 1.0}
    for name, gradient in gradients.items():
        assert np.isfinite(gradient).all(), name


def test_equal_client_and_server_weights_give_lambda_no_gradient() -> None:
    """At a round's first batch w_l = w_server, so lambda has no effect at all."""
    case = Case((4, 3, 3, 3), SCALARS[0], seed=11)
    case.w_server = case.w.copy()
    _, gradients = case.run(Sharpness(1.0))
    assert gradients["lam"] == 0.0
    assert gradients["alpha"] != 0.0

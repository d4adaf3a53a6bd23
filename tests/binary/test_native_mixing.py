"""The mixed sign in C against one formula in float64, on every kernel set."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fedbnn_core.binary import native_steps
from fedbnn_core.binary.mixing import standardize_filters
from fedbnn_core.binary.native_mixing import native_mixed_sign, takes
from fedbnn_core.binary.rotation import common_start
from fedbnn_core.binary.surrogate import Sharpness

pytestmark = pytest.mark.skipif(
    not native_steps.kernels(), reason="installed without a C compiler"
)

SHAPES = [(32, 16, 3, 3), (8, 1, 7, 7), (6, 4, 1, 1), (5, 3, 3, 3), (3, 64, 3, 3)]
SCALARS = [(0.5, 0.7, 0.6), (0.95, 0.9, 0.2), (1.0, 0.6, 1.0), (0.3, 0.0, 0.0)]


@pytest.fixture(params=native_steps.kernels())
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    native_steps.use_kernel(request.param)
    yield request.param
    native_steps.use_kernel("auto")


class PlainSign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, t, k):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        ctx.t, ctx.k = t, k
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        slope = ctx.k * (2**0.5 * ctx.t - ctx.t**2 * x.abs())
        return grad * slope.clamp_min(0), None, None


def plain(leaves, w_server, rotation, sharpness):  # type: ignore[no-untyped-def]
    """Return sign(w~) by autograd, the rotation as one explicit matrix."""

    def std(w: torch.Tensor) -> torch.Tensor:
        flat = w.flatten(1) - w.flatten(1).mean(dim=1, keepdim=True)
        return (flat / (flat.std(dim=1, keepdim=True) + 1e-5)).reshape(w.shape)

    w, lam, alpha, beta = leaves
    z = std(lam * w + (1 - lam) * w_server)
    turned = (z.flatten(1) @ torch.kron(*rotation)).reshape(z.shape)
    mixed = (1 - alpha) * z + alpha * beta * turned + alpha * (1 - beta) * std(w_server)
    return PlainSign.apply(mixed, *sharpness.weight), mixed


@pytest.mark.parametrize("t", [0.01, 0.8, 10.0])
@pytest.mark.parametrize("scalars", SCALARS)
@pytest.mark.parametrize("shape", SHAPES)
def test_sign_and_gradients(
    kernel: str, shape: tuple[int, ...], scalars: tuple[float, ...], t: float
) -> None:
    rng = np.random.default_rng(3)
    w = torch.tensor(rng.normal(0.05, 0.3, shape))
    w_server = w + torch.tensor(rng.normal(0, 0.2, shape))
    upstream = torch.tensor(rng.normal(size=shape))
    r1, r2 = common_start(w[0].numel(), start="haar", seed=(1, 2))
    values = (w, *map(torch.tensor, map(np.float64, scalars)))
    exact = [value.clone().requires_grad_() for value in values]
    expected, mixed = plain(exact, w_server, (r1.double(), r2.double()), Sharpness(t))
    expected.backward(upstream)

    single = [value.float().requires_grad_() for value in values]
    server = w_server.float()
    out = native_mixed_sign(
        single[0],
        lam=single[1],
        alpha=single[2],
        beta=single[3],
        w_server=server,
        z_server=standardize_filters(server),
        rotation=(r1, r2),
        sharpness=Sharpness(t),
    )
    out.backward(upstream.float())
    clear = mixed.abs() > 1e-5
    assert clear.float().mean() > 0.99
    assert torch.equal(out.double()[clear], expected[clear])
    assert out.is_contiguous(memory_format=torch.channels_last)
    for value, reference in zip(single, exact, strict=True):
        difference = (value.grad.double() - reference.grad).norm()
        # A scalar's gradient is a sum of terms of either sign.
        size = (
            reference.grad.norm() + (0.05 if value.ndim == 0 else 0) * upstream.norm()
        )
        assert difference <= 2e-5 * (size + exact[0].grad.norm())


def test_a_constant_filter_has_no_direction(kernel: str) -> None:
    w = torch.full((2, 3, 3, 3), 0.25).requires_grad_()
    r1, r2 = common_start(27)
    out = native_mixed_sign(
        w,
        lam=torch.tensor(0.5),
        alpha=torch.tensor(0.5),
        beta=torch.tensor(0.5),
        w_server=w.detach(),
        z_server=torch.zeros_like(w),
        rotation=(r1, r2),
        sharpness=Sharpness(1.0),
    )
    out.sum().backward()
    assert torch.equal(out, torch.ones_like(out))
    assert torch.isfinite(w.grad).all()


@pytest.mark.parametrize(
    "weights",
    [
        torch.zeros(4, 1, 1, 1),
        torch.zeros(4, 2, 3, 3, dtype=torch.float64),
        torch.zeros(4, 2, 3, 3, device="meta"),
        torch.zeros(4, 2, 3, 3).to(memory_format=torch.channels_last),
    ],
)
def test_what_has_no_kernel_is_left_to_torch(weights: torch.Tensor) -> None:
    assert not takes(weights)

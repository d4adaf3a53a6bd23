"""The mixed sign in C against one formula in float64, on every kernel set."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fedbnn_core.binary import native_steps
from fedbnn_core.binary.native_mixing import native_mixed_sign, takes
from fedbnn_core.binary.rotation import common_start
from fedbnn_core.binary.surrogate import Sharpness
from tests.binary.test_mixing import Case, autograd_reference, mixed_weight

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


@pytest.mark.parametrize("t", [0.01, 0.8, 10.0])
@pytest.mark.parametrize("scalars", SCALARS)
@pytest.mark.parametrize("shape", SHAPES)
def test_sign_and_gradients(
    kernel: str,
    shape: tuple[int, int, int, int],
    scalars: tuple[float, float, float],
    t: float,
) -> None:
    case = Case(shape, scalars, seed=3)
    expected_out, expected = autograd_reference(case, Sharpness(t))
    out, gradients = case.run(Sharpness(t), torch.float32, native_mixed_sign)
    mixed = mixed_weight(case.w, *scalars, case.w_server, case.rotation)
    clear = torch.tensor(np.abs(mixed) > 1e-5)
    assert clear.float().mean() > 0.99
    assert torch.equal(out.double()[clear], expected_out[clear])
    assert out.is_contiguous(memory_format=torch.channels_last)
    of_weights = np.linalg.norm(expected["w"])
    for name, value in expected.items():
        # A scalar's gradient is a sum of terms of either sign.
        terms = 0.0 if name == "w" else 0.05 * np.linalg.norm(case.upstream)
        size = np.linalg.norm(value) + of_weights + terms
        assert np.linalg.norm(gradients[name] - value) <= 2e-5 * size


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

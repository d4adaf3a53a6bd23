"""Every kernel set against NumPy's integers and against the steps in torch."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from fedbnn_core.binary import native_steps, torch_steps
from fedbnn_core.binary.conv_shape import ConvShape, Pool
from fedbnn_core.binary.integer_conv import clamped_sum
from fedbnn_core.binary.rounding import LEVELS

pytestmark = pytest.mark.skipif(
    not native_steps.kernels(), reason="installed without a C compiler"
)

KEY = (123456789, 4000000000)
UNIT = 0.01
# batch, height, width, inputs, outputs, kernel, stride, padding, groups
SHAPES = [
    ConvShape(2, 7, 7, 32, 16, 3, 1, 1, 1),
    ConvShape(3, 5, 6, 3, 5, 3, 1, 1, 1),
    ConvShape(2, 8, 9, 17, 33, 3, 2, 1, 1),
    ConvShape(2, 9, 7, 64, 40, 1, 1, 0, 1),
    ConvShape(2, 8, 8, 16, 24, 1, 2, 0, 1),
    ConvShape(1, 28, 28, 1, 32, 3, 1, 1, 1),
    ConvShape(2, 6, 6, 40, 9, 2, 2, 0, 1),
    ConvShape(4, 1, 1, 8, 4, 3, 1, 1, 1),
    ConvShape(1, 1, 1, 130, 1, 1, 1, 0, 1),
    ConvShape(3, 5, 5, 12, 6, 5, 3, 2, 1),
    ConvShape(1, 7, 7, 2, 3, 7, 1, 3, 1),
    ConvShape(70, 8, 8, 8, 13, 3, 1, 1, 1),
    ConvShape(2, 4, 4, 300, 20, 3, 1, 1, 1),
    ConvShape(2, 9, 11, 40, 40, 7, 1, 3, 40),
    ConvShape(3, 6, 5, 96, 96, 3, 1, 1, 96),
    ConvShape(2, 5, 5, 7, 7, 5, 1, 2, 7),
    ConvShape(1, 4, 300, 3, 3, 3, 1, 0, 3),
    ConvShape(1, 9, 9, 33, 33, 15, 1, 7, 33),
]


@pytest.fixture(params=native_steps.kernels())
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    native_steps.use_kernel(request.param)
    yield request.param
    native_steps.use_kernel("auto")


def inputs(shape: ConvShape) -> tuple[Tensor, Tensor]:
    """Return x, some of it zero, and weights +-1."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(
        (shape.batch, shape.in_channels, shape.height, shape.width),
        generator=generator,
    )
    x[x.abs() < 0.05] = 0.0
    inputs = shape.in_channels // shape.groups
    size = (shape.out_channels, inputs, shape.kernel, shape.kernel)
    weight = torch.where(torch.rand(size, generator=generator) < 0.5, -1.0, 1.0)
    return x, weight.contiguous(memory_format=torch.channels_last)


def padded_signs(shape: ConvShape, x: Tensor) -> np.ndarray:
    a = np.where(x.numpy() >= 0, 1, -1).astype(np.int64)
    p = shape.padding
    return np.pad(a, ((0, 0), (0, 0), (p, p), (p, p)), constant_values=1)


def windows(shape: ConvShape, a: np.ndarray) -> np.ndarray:
    """Return a view (n, c, h_o, w_o, k, k) of every patch."""
    size = (shape.kernel, shape.kernel)
    view = sliding_window_view(a, size, axis=(2, 3))
    return view[:, :, :: shape.stride, :: shape.stride]


def rounded_by_hand(shape: ConvShape, dy: Tensor, bits: int) -> np.ndarray:
    """Return q of a gradient, one value at a time."""
    levels = np.float32(LEVELS[bits])
    inverse = levels / np.abs(dy.numpy()).max()
    flat = dy.permute(0, 2, 3, 1).numpy().reshape(-1)
    q = np.empty(len(flat), dtype=np.int64)
    for i, value in enumerate(flat):
        h = (i + KEY[0]) % 2**32
        h = (h ^ (h >> 16)) * 0x7FEB352D % 2**32
        h = (h ^ (h >> 15) ^ KEY[1]) * 0x846CA68B % 2**32
        u = np.float32(((h ^ (h >> 16)) >> 8) / 2**24)
        q[i] = np.floor(value * inverse + u)
    height, width = shape.output
    q = q.clip(-LEVELS[bits], LEVELS[bits])
    return q.reshape(shape.batch, height, width, -1).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bits", [8, 4])
def test_convolution_and_both_products_are_numpys_integers(
    kernel: str, shape: ConvShape, bits: int
) -> None:
    x, weight = inputs(shape)
    patches = windows(shape, padded_signs(shape, x))
    b = weight.numpy().astype(np.int64)
    a, code = native_steps.signs(x, 180.3, 1.0)
    y = native_steps.convolve(shape, a, weight)
    # A depthwise filter has its own channel only.
    forward, backward, spreading = (
        ("ncyxij,ocij->noyx", "ncyxij,noyx->ocij", "noyx,ocij->ncyxij")
        if shape.groups == 1
        else ("noyxij,ocij->noyx", "noyxij,noyx->oij", "noyx,ocij->noyxij")
    )
    assert np.array_equal(y.numpy(), np.einsum(forward, patches, b))

    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(bits))
    q = rounded_by_hand(shape, dy, bits)
    rounded = native_steps.round_output_gradient(shape, dy, bits, KEY)
    scale = np.float32(dy.abs().max()) / np.float32(LEVELS[bits])
    assert rounded[1] == scale

    dw = np.einsum(backward, patches, q).reshape(b.shape).astype(np.float32) * scale
    got = native_steps.weight_gradient(shape, rounded, a, weight)
    assert np.array_equal(got.numpy(), dw)

    da = np.zeros(padded_signs(shape, x).shape, dtype=np.int64)
    spread = np.einsum(spreading, q, b)
    for row, column in np.ndindex(*shape.output):
        top, left = row * shape.stride, column * shape.stride
        size = shape.kernel
        da[:, :, top : top + size, left : left + size] += spread[:, :, row, column]
    p = shape.padding
    da = da[:, :, p : p + shape.height, p : p + shape.width]
    codes = code.permute(0, 3, 1, 2).numpy().astype(np.float32)
    factor = np.float32(float(scale) * UNIT)
    signs = weight.to(torch.int8)
    got = native_steps.input_gradient(shape, rounded, signs, code, UNIT)
    assert np.array_equal(got.numpy(), (da.astype(np.float32) * codes) * factor)


@pytest.mark.parametrize("limit", [1.0, float("inf")])
@pytest.mark.parametrize("channels", [1, 7, 8, 33])
def test_signs_and_slopes(kernel: str, channels: int, limit: float) -> None:
    x = torch.randn(2, channels, 3, 5, generator=torch.Generator().manual_seed(3))
    x[:, :, 0, 0], x[:, :, 1, 1], x[:, :, 2, 2] = 0.0, -0.0, 1.0
    steep = 180.3
    bits, code = native_steps.signs(x, steep, limit)
    rows = x.permute(0, 2, 3, 1).numpy()
    unpacked = np.unpackbits(bits.numpy(), axis=-1, bitorder="little")[..., :channels]
    assert np.array_equal(unpacked, rows >= 0)
    size = np.abs(rows)
    slope = np.maximum(np.float32(255) - size * np.float32(steep), np.float32(0))
    expected = np.where(size < limit, np.floor(slope + np.float32(0.5)), 0)
    assert np.array_equal(code.numpy(), expected)
    assert torch.equal(code.permute(0, 3, 1, 2), torch_steps.signs(x, steep, limit)[1])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("pool", Pool)
def test_norm_and_its_gradient_are_those_of_torch(
    kernel: str, shape: ConvShape, pool: Pool
) -> None:
    height, width = shape.output
    if pool is not Pool.NONE and min(height, width) < 2:
        pytest.skip("nothing to pool")
    x, weight = inputs(shape)
    generator = torch.Generator().manual_seed(5)
    gamma, beta = torch.randn((2, shape.out_channels), generator=generator)
    results = []
    for steps in (native_steps, torch_steps):
        a, code = steps.signs(x, 180.3, 1.0)
        y = steps.convolve(shape, a, weight)
        out, saved = steps.normalize(shape, y, gamma, beta, 1e-5, pool)
        dz = torch.randn(out.shape, generator=torch.Generator().manual_seed(6))
        rounded, dgamma, dbeta = steps.norm_gradient(
            shape, dz, y, gamma, saved, pool, 8, KEY
        )
        dx = steps.input_gradient(shape, rounded, weight.to(torch.int8), code, UNIT)
        dw = steps.weight_gradient(shape, rounded, a, weight)
        results.append((out, float(rounded[1]), dgamma, dbeta, saved, dx, dw))
    native, reference = results
    assert torch.equal(native[0], reference[0])
    assert native[1] == reference[1]
    for ours, theirs in zip(native[2:5], reference[2:5], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    assert torch.equal(native[5], reference[5])
    assert torch.equal(native[6], reference[6])


def test_a_diverged_gradient_stays_visible(kernel: str) -> None:
    shape = SHAPES[0]
    x, weight = inputs(shape)
    a, _ = native_steps.signs(x, 180.3, 1.0)
    for bad in (float("nan"), float("inf")):
        dy = torch.ones(shape.batch, shape.out_channels, *shape.output)
        dy[1, 2, 3, 4] = bad
        rounded = native_steps.round_output_gradient(shape, dy, 8, KEY)
        dw = native_steps.weight_gradient(shape, rounded, a, weight)
        assert not dw.isfinite().any()


def test_clamped_sum_and_its_gradient(kernel: str) -> None:
    a, b, grad = torch.randn(3, 2, 5, 3, 7, generator=torch.Generator().manual_seed(4))
    a[0, 0, 0], b[0, 0, 0] = 0.25, 0.75  # exactly 1: the gradient stops
    a, b = a.requires_grad_(), b.requires_grad_()
    out = clamped_sum(a, b)
    expected = F.hardtanh(a + b)
    assert torch.equal(out, expected)
    of = (a, b)
    ours = torch.autograd.grad(out, of, grad, retain_graph=True)
    theirs = torch.autograd.grad(expected, of, grad)
    assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


def test_unknown_kernels_are_named() -> None:
    with pytest.raises(ValueError, match=r"'sse9'.*portable"):
        native_steps.use_kernel("sse9")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (ConvShape(2, 8, 8, 4, 4, 3, 1, 1, 2), torch.float32),
        (ConvShape(2, 8, 8, 4, 8, 3, 1, 1, 4), torch.float32),
        (ConvShape(2, 8, 8, 4, 4, 3, 2, 1, 4), torch.float32),
        (ConvShape(2, 20, 20, 4, 4, 17, 1, 1, 4), torch.float32),
        (ConvShape(2, 8, 8, 4, 4, 3, 1, 3, 1), torch.float32),
        (ConvShape(2, 8, 8, 4, 4, 3, 1, 1, 1), torch.float64),
    ],
)
def test_what_has_no_kernel_is_left_to_torch(
    shape: ConvShape, dtype: torch.dtype
) -> None:
    assert not native_steps.supports(shape, torch.zeros(1, dtype=dtype))

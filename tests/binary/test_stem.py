"""The norm and pool behind a float stem, against torch's own layers."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbnn_core.binary import native_steps, torch_steps
from fedbnn_core.binary.block import conv_norm
from fedbnn_core.binary.conv_shape import ConvShape, Pool
from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.binary.stem import StemConv2d

# batch, channels, height, width; odd sizes leave pixels out of every window.
SIZES = [(4, 32, 12, 12), (3, 5, 7, 9), (2, 17, 6, 3), (8, 1, 2, 2)]


@pytest.fixture(params=["no kernels", *native_steps.kernels()])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator:
    """Force a kernel set, or torch where none was compiled."""
    if request.param == "no kernels":
        monkeypatch.setattr(native_steps, "_train", None)
        yield
        return
    native_steps.use_kernel(request.param)
    yield
    native_steps.use_kernel("auto")


def pair(channels: int, options: BinaryOptions) -> tuple[StemConv2d, nn.BatchNorm2d]:
    torch.manual_seed(channels)
    conv = StemConv2d(3, channels, 3, padding=1, bias=False, options=options)
    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        norm.weight.normal_()  # some are negative: the pool turns around
        norm.bias.normal_()
    return conv, norm


def results(
    conv: StemConv2d, norm: nn.BatchNorm2d, x: Tensor, out: Tensor
) -> list[Tensor]:
    """Return output, gradients and running statistics."""
    generator = torch.Generator().manual_seed(9)
    of = (conv.weight, norm.weight, norm.bias)
    gradients = torch.autograd.grad(
        out, of, torch.randn(out.shape, generator=generator)
    )
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return [out, *gradients, norm.running_mean, norm.running_var]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("pool", Pool)
def test_a_stem_trains_as_with_torchs_layers(
    kernel: None, size: tuple[int, int, int, int], pool: Pool
) -> None:
    batch, channels, height, width = size
    x = torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(1))
    conv, norm = pair(channels, BinaryOptions(gradient_bits=8))
    ours = results(conv, norm, x, conv_norm(conv, norm, x, pool=pool))
    if len(ours[0]) * ours[0][0, 0].numel() < 2:
        pytest.skip("one value has no variance")

    conv, norm = pair(channels, BinaryOptions(gradient_bits=8))
    y = F.conv2d(x, conv.weight, padding=1)
    y = F.max_pool2d(y, 2) if pool is Pool.BEFORE else y
    y = F.batch_norm(
        y, norm.running_mean, norm.running_var, norm.weight, norm.bias, training=True
    )
    y = F.max_pool2d(y, 2) if pool is Pool.AFTER else y
    for a, b in zip(ours, results(conv, norm, x, y), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.skipif(not native_steps.kernels(), reason="installed without a C compiler")
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("pool", Pool)
def test_all_kernels_give_the_same_bits(
    size: tuple[int, int, int, int], pool: Pool
) -> None:
    n, c, height, width = size
    generator = torch.Generator().manual_seed(2)
    y = torch.randn(size, generator=generator)
    y = y.contiguous(memory_format=torch.channels_last)
    gamma, beta = torch.randn((2, c), generator=generator)
    shape = ConvShape(n, height, width, c, c, 1, 1, 0, 1)
    kernels = native_steps.kernels()
    found = []
    for steps, name in [(torch_steps, ""), *((native_steps, k) for k in kernels)]:
        if name:
            native_steps.use_kernel(name)
        out, saved = steps.normalize(shape, y, gamma, beta, 1e-5, pool)
        dz = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
        gradients = steps.float_norm_gradient(shape, dz, y, gamma, saved, pool)
        found.append([out, saved, *gradients])
    native_steps.use_kernel("auto")
    reference, *native = found
    for one in native:
        assert all(torch.equal(a, b) for a, b in zip(one, native[0], strict=True))
        for a, b in zip(one, reference, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_float_gradients_leave_torchs_layers_alone() -> None:
    x = torch.randn(4, 3, 8, 8)
    conv, norm = pair(6, BinaryOptions(gradient_bits=32))
    ours = conv_norm(conv, norm, x, pool=Pool.AFTER)
    conv, norm = pair(6, BinaryOptions(gradient_bits=32))
    assert torch.equal(ours, F.max_pool2d(norm(conv(x)), 2))

"""Convolution, norm and pool as one step: against torch's own layers."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbnn_core.binary import native_steps
from fedbnn_core.binary.block import Pool, conv_norm
from fedbnn_core.binary.layer import RotatedBinaryConv2d
from fedbnn_core.binary.model import begin_epoch
from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.binary.surrogate import Sharpness

LAYERS = [
    {"in_channels": 8, "out_channels": 12, "kernel_size": 3, "padding": 1},
    {"in_channels": 5, "out_channels": 7, "kernel_size": 3, "padding": 1, "stride": 2},
    {"in_channels": 6, "out_channels": 9, "kernel_size": 1, "stride": 2},
    {"in_channels": 6, "out_channels": 6, "kernel_size": 7, "padding": 3, "groups": 6},
    {"in_channels": 4, "out_channels": 8, "kernel_size": 2, "stride": 2, "bias": True},
]


def block(settings: dict, bits: int) -> tuple[RotatedBinaryConv2d, nn.BatchNorm2d]:
    torch.manual_seed(0)
    options = BinaryOptions(gradient_bits=bits)
    conv = RotatedBinaryConv2d(**settings, norm_follows=True, options=options)
    norm = nn.BatchNorm2d(conv.out_channels)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    conv.begin_epoch(Sharpness(1.0), rounding=3)
    return conv, norm


def images(channels: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(6, channels, 9, 10, generator=generator).requires_grad_()


def composed(conv: nn.Module, norm: nn.Module, x: Tensor, pool: Pool) -> Tensor:
    if pool is Pool.BEFORE:
        return norm(F.max_pool2d(conv(x), 2))
    out = norm(conv(x))
    return F.max_pool2d(out, 2) if pool is Pool.AFTER else out


def gradients(out: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    return torch.autograd.grad((out * weights).sum(), of, allow_unused=True)


@pytest.mark.parametrize("pool", Pool)
@pytest.mark.parametrize("settings", LAYERS)
def test_float_gradients_are_torchs_layers_bit_for_bit(settings: dict, pool: Pool):
    (conv, norm), x = block(settings, 32), images(settings["in_channels"])
    twin = copy.deepcopy(norm)
    ours = conv_norm(conv, norm, x, pool=pool)
    theirs = composed(conv, twin, x, pool)
    assert torch.equal(ours, theirs)
    for a, b in zip(
        gradients(ours, x, conv.weight, norm.weight),
        gradients(theirs, x, conv.weight, twin.weight),
        strict=True,
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("pool", Pool)
@pytest.mark.parametrize("settings", LAYERS)
def test_rounded_gradients_are_the_float_ones_on_average(
    settings: dict, pool: Pool, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(native_steps, "supports", lambda shape, x: False)
    (conv, norm), x = block(settings, 32), images(settings["in_channels"])
    of = (x, conv.weight, norm.weight, norm.bias)
    theirs = composed(conv, norm, x, pool)
    exact = gradients(theirs, *of)
    statistics = norm.running_mean.clone(), norm.running_var.clone()

    repeats = 40
    mean = [torch.zeros_like(g) for g in exact]
    (conv, norm), x = block(settings, 8), images(settings["in_channels"])
    of = (x, conv.weight, norm.weight, norm.bias)
    for step in range(repeats):
        ours = conv_norm(conv, norm, x, pool=pool)
        if step == 0:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
            for running, expected in zip(
                (norm.running_mean, norm.running_var), statistics, strict=True
            ):
                torch.testing.assert_close(running, expected, rtol=1e-4, atol=1e-5)
            assert int(norm.num_batches_tracked) == 1
        for total, part in zip(mean, gradients(ours, *of), strict=True):
            total += part / repeats
    for ours, theirs in zip(mean, exact, strict=True):
        # 8 bits in the gradient and in the slope of sign, averaged over 40 draws.
        error = (ours - theirs).norm() / theirs.norm()
        assert error < 0.01, error


@pytest.mark.parametrize("pool", Pool)
def test_steps_and_epochs_round_differently_and_repeatably(pool: Pool) -> None:
    def draws(rounding: int) -> list[bytes]:
        (conv, norm), x = block(LAYERS[0], 8), images(8)
        conv.begin_epoch(Sharpness(1.0), rounding=rounding)
        results = []
        for _ in range(3):
            (dx,) = gradients(conv_norm(conv, norm, x, pool=pool), x)
            results.append(dx.numpy().tobytes())
        return results

    first, again, other = draws(1), draws(1), draws(2)
    assert first == again
    assert len(set(first + other)) == 6


def test_layers_of_a_network_round_differently() -> None:
    options = BinaryOptions(gradient_bits=8)
    layers = [RotatedBinaryConv2d(4, 4, 1, options=options) for _ in range(2)]
    begin_epoch(nn.Sequential(*layers), Sharpness(1.0), seed=5)
    assert layers[0].next_key() != layers[1].next_key()


def test_bias_behind_a_norm_has_no_gradient() -> None:
    (conv, norm), x = block(LAYERS[4], 8), images(4)
    with torch.no_grad():
        conv.bias.fill_(3.0)
    (grad,) = gradients(conv_norm(conv, norm, x), conv.bias)
    assert not grad.any()
    twin = nn.BatchNorm2d(8)
    composed(conv, twin, x, Pool.NONE)
    torch.testing.assert_close(norm.running_mean, twin.running_mean)


def test_one_value_a_channel_is_refused_as_by_torch() -> None:
    conv, norm = block(LAYERS[0], 8)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        conv_norm(conv, norm, torch.randn(1, 8, 1, 1))


def test_layer_alone_has_the_same_sums_and_rounds_its_gradient() -> None:
    (conv, _), x = block(LAYERS[0], 8), images(8)
    ours = conv(x)
    conv.options = BinaryOptions()
    theirs = conv(x)
    assert torch.equal(ours, theirs)
    dx, dw = gradients(ours, x, conv.weight)
    exact_x, exact_w = gradients(theirs, x, conv.weight)
    assert float((dx - exact_x).norm() / exact_x.norm()) < 0.05
    conv.eval()
    conv.options = BinaryOptions(gradient_bits=8)
    assert torch.equal(conv(x), theirs)
    assert np.isfinite(dw.numpy()).all()
    assert exact_w.shape == dw.shape

"""A convolution with the batch norm behind it, and a max-pool before or behind that.

Networks call `conv_norm` for both twins. It is torch's own layers in turn, except where
a network trains in integers: there one function does all three for a binary layer, and
one does norm and pool behind the float stem.
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbnn_core.binary.conv_shape import ConvShape, Pool
from fedbnn_core.binary.integer_conv import Statistics, clamped_sum, normalized_conv
from fedbnn_core.binary.layer import RotatedBinaryConv2d
from fedbnn_core.binary.memory_layout import hardtanh
from fedbnn_core.binary.stem import StemConv2d, normalized_floats

__all__ = ["Pool", "conv_norm", "residual"]

_SMALLEST = {Pool.NONE: 2, Pool.AFTER: 8, Pool.BEFORE: 8}
"""Values of a channel that have a variance, behind the pool, too."""


def conv_norm(
    conv: nn.Module, norm: nn.BatchNorm2d, x: Tensor, *, pool: Pool = Pool.NONE
) -> Tensor:
    """Return norm(conv(x)), pooled 2 x 2 before or behind the norm if asked."""
    if isinstance(conv, RotatedBinaryConv2d) and _fits(conv, norm):
        pixels, shape = conv.prepare(x)
        if shape.batch * math.prod(shape.output) >= _SMALLEST[pool]:
            return _in_integers(conv, norm, pixels, shape, pool)
    y = conv(x)
    if _is_stem_in_integers(conv, norm) and y[:, 0].numel() >= _SMALLEST[pool]:
        out, statistics = normalized_floats(
            y, norm.weight, norm.bias, eps=norm.eps, pool=pool
        )
        _track(norm, statistics)
        return out
    if pool is Pool.BEFORE:
        y = F.max_pool2d(y, 2)
    y = norm(y)
    return cast(Tensor, F.max_pool2d(y, 2) if pool is Pool.AFTER else y)


def residual(conv: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    """Return hardtanh(a + b), the end of a residual block whose layers are binary."""
    in_integers = isinstance(conv, RotatedBinaryConv2d) and conv.in_integers
    return clamped_sum(a, b) if in_integers else hardtanh(a + b)


def _fits(conv: RotatedBinaryConv2d, norm: nn.BatchNorm2d) -> bool:
    """Return whether layer and norm train in integers, with nothing in between."""
    return conv.in_integers and conv.scale is None and norm.training and norm.affine


def _is_stem_in_integers(conv: nn.Module, norm: nn.BatchNorm2d) -> bool:
    """Return whether conv is the float stem of a network that trains in integers."""
    if not isinstance(conv, StemConv2d) or not conv.in_integers:
        return False
    return norm.training and norm.affine


def _in_integers(
    conv: RotatedBinaryConv2d,
    norm: nn.BatchNorm2d,
    x: Tensor,
    shape: ConvShape,
    pool: Pool,
) -> Tensor:
    out, statistics = normalized_conv(
        x,
        conv.binary_weight(),
        shape,
        conv.surrogate(),
        bits=conv.options.bits_for(conv.weight),
        key=conv.next_key(),
        gamma=norm.weight,
        beta=norm.bias,
        eps=norm.eps,
        pool=pool,
    )
    if conv.bias is not None:
        # The norm takes a channel's constant out again; only its mean knows of it, and
        # the bias has a gradient of zero, as behind any batch norm.
        mean = statistics.mean + conv.bias.detach()
        statistics = statistics._replace(mean=mean)
        out = out + 0.0 * conv.bias.sum()
    _track(norm, statistics)
    return out


@torch.no_grad()
def _track(norm: nn.BatchNorm2d, statistics: Statistics) -> None:
    """Update the running statistics as torch's own batch norm does."""
    if norm.running_mean is None or norm.running_var is None:
        return
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    share = norm.momentum
    if share is None:
        share = 1.0 / float(cast(Tensor, norm.num_batches_tracked))
    mean, variance, n = statistics
    unbiased = variance * (n / (n - 1))
    for running, batch in ((norm.running_mean, mean), (norm.running_var, unbiased)):
        running.mul_(1.0 - share).add_(batch.to(running.dtype), alpha=share)

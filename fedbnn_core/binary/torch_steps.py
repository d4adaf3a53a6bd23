"""The steps of an integer binary convolution in torch: the reference, and any device.

All values are small whole numbers held in float32, where sums stay exact below 2^24.
Statistics are float64 on a CPU and float32 on a device that may not have it.
`native_steps` has the same functions for float32 on a CPU; a step is described here.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

from fedbnn_core.binary.conv_shape import ConvShape, Pool
from fedbnn_core.binary.devices import widest
from fedbnn_core.binary.rounding import Key, round_gradient

__all__ = [
    "Rounded",
    "clamped_sum",
    "convolve",
    "float_norm_gradient",
    "input_gradient",
    "mask",
    "norm_gradient",
    "normalize",
    "round_output_gradient",
    "signs",
    "weight_gradient",
]

Rounded = tuple[Tensor, Tensor]
"""Whole numbers q and a scale s: the gradient is about q * s."""


def signs(x: Tensor, steep: float, limit: float) -> tuple[Tensor, Tensor]:
    """Return sign(x) and the surrogate gradient in 8 bits, 255 at x = 0.

    The code is 255 - steep * |x| to the nearest, but at least 0, and 0 where
    |x| >= limit.
    """
    size = x.abs()
    code = (255.0 - size * steep).clamp_(min=0.0).add_(0.5).floor_()
    code.masked_fill_(~(size < limit), 0.0)
    return torch.where(x >= 0, 1, -1).to(torch.int8), code.to(torch.uint8)


def convolve(shape: ConvShape, a: Tensor, weight: Tensor) -> Tensor:
    """Return conv(a, weight), whose padded taps are +1."""
    # With a - 1 the padded taps are 0; sum(weight) puts the difference back.
    return F.conv2d(
        a.to(weight.dtype) - 1,
        weight,
        weight.sum(dim=(1, 2, 3)),
        stride=shape.stride,
        padding=shape.padding,
        groups=shape.groups,
    )


def normalize(
    shape: ConvShape, y: Tensor, gamma: Tensor, beta: Tensor, eps: float, pool: Pool
) -> tuple[Tensor, Tensor]:
    """Return the batch norm of y, pooled if asked, and what its gradient needs.

    That is, of every channel in the `widest` type: mean, biased variance, 1/sigma and
    gain, with which the norm is y * gain + (beta - mean * gain). It is monotone: a
    pool behind it takes the largest sum, or the smallest where gamma is negative.
    """
    normed = F.max_pool2d(y, 2) if pool is Pool.BEFORE else y
    mean, variance = _moments(normed)
    inverse = (variance + eps).sqrt().reciprocal()
    gain = gamma.to(mean.dtype) * inverse
    offset = beta.to(mean.dtype) - mean * gain
    if pool is Pool.AFTER:
        flip = _flip(gamma)
        normed = F.max_pool2d(y * flip, 2) * flip
    out = normed * _per_channel(gain.to(y.dtype)) + _per_channel(offset.to(y.dtype))
    return out, torch.stack((mean, variance, inverse, gain))


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance of every channel, in the `widest` type."""
    if widest(values) is not torch.float64:
        variance, mean = torch.var_mean(values, dim=(0, 2, 3), correction=0)
        return mean, variance
    count = float(values.numel() // values.shape[1])
    wide = values.to(torch.float64)
    mean = wide.sum(dim=(0, 2, 3)) / count
    variance = wide.square().sum(dim=(0, 2, 3)) / count - mean * mean
    return mean, variance.clamp_(min=0.0)


def _per_channel(values: Tensor) -> Tensor:
    return values[:, None, None]


def _flip(gamma: Tensor) -> Tensor:
    return _per_channel(torch.where(gamma < 0, -1.0, 1.0).to(gamma.dtype))


def norm_gradient(
    shape: ConvShape,
    dz: Tensor,
    y: Tensor,
    gamma: Tensor,
    saved: Tensor,
    pool: Pool,
    bits: int,
    key: Key,
) -> tuple[Rounded, Tensor, Tensor]:
    """Return dL/dy rounded, dL/dgamma and dL/dbeta, given dL/dout of `normalize`."""
    dy, dgamma, dbeta = float_norm_gradient(shape, dz, y, gamma, saved, pool)
    return round_gradient(dy, bits, key), dgamma, dbeta


def float_norm_gradient(
    shape: ConvShape, dz: Tensor, y: Tensor, gamma: Tensor, saved: Tensor, pool: Pool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dL/dy, dL/dgamma and dL/dbeta, given dL/dout of `normalize`.

    With d = y - mean over n values of a channel,

        dL/dy = gain * (dz - sum(dz)/n - d/sigma^2 * sum(dz * d)/n)

    is gain * dz + constant + linear * y. A pool hands its gradient to the first of the
    largest values.
    """
    mean, _, inverse, gain = saved
    where = None
    normed, count = y, y.numel()
    if pool is not Pool.NONE:
        flip = _flip(gamma) if pool is Pool.AFTER else torch.ones_like(_flip(gamma))
        largest, where = F.max_pool2d(y * flip, 2, return_indices=True)
        normed = largest * flip
        count = y.numel() if pool is Pool.AFTER else normed.numel()
    share = -float(count // shape.out_channels)
    centred = normed - _per_channel(mean.to(y.dtype))
    sums = dz.sum(dim=(0, 2, 3), dtype=gain.dtype)
    products = (dz * centred).sum(dim=(0, 2, 3), dtype=gain.dtype)
    slope = gain * (inverse * inverse) * products / share
    linear = _per_channel(slope.to(y.dtype))
    constant = _per_channel((gain * sums / share - slope * mean).to(y.dtype))
    dy = _per_channel(gain.to(y.dtype)) * dz
    if pool is not Pool.AFTER:
        dy = dy + (constant + linear * normed)
    if where is not None:
        dy = F.max_unpool2d(dy, where, [2, 2], output_size=list(y.shape[2:]))
    if pool is Pool.AFTER:
        dy = dy + (constant + linear * y)
    return dy, (products * inverse).to(y.dtype), sums.to(y.dtype)


def clamped_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return hardtanh(a + b), and where its gradient is not zero."""
    total = a + b
    return total.clamp(-1.0, 1.0), total.abs() < 1.0


def mask(grad: Tensor, inside: Tensor) -> Tensor:
    """Return the gradient where ``inside`` is set, else 0."""
    return torch.where(inside, grad, 0.0)


def round_output_gradient(shape: ConvShape, dy: Tensor, bits: int, key: Key) -> Rounded:
    """Return dL/dy rounded to so many bits, and its scale."""
    return round_gradient(dy, bits, key)


def input_gradient(
    shape: ConvShape, rounded: Rounded, weight: Tensor, code: Tensor, unit: float
) -> Tensor:
    """Return conv^T(q, weight) * code * (s * unit)."""
    q, scale = rounded
    input_size = (q.shape[0], shape.in_channels, shape.height, shape.width)
    sums: Tensor = conv2d_input(  # type: ignore[no-untyped-call]
        input_size,
        weight.to(q.dtype),
        q,
        stride=shape.stride,
        padding=shape.padding,
        groups=shape.groups,
    )
    return (sums * code) * (scale.to(widest(scale)) * unit).to(sums.dtype)


def weight_gradient(
    shape: ConvShape, rounded: Rounded, a: Tensor, like: Tensor
) -> Tensor:
    """Return corr(a, q) * s in the shape of ``like``; padded taps are +1."""
    q, scale = rounded
    sums: Tensor = conv2d_weight(  # type: ignore[no-untyped-call]
        a.to(q.dtype) - 1,
        like.shape,
        q,
        stride=shape.stride,
        padding=shape.padding,
        groups=shape.groups,
    )
    return (sums + q.sum(dim=(0, 2, 3))[:, None, None, None]) * scale

"""The steps of an integer binary convolution in torch: the reference, and any device.

All values are small whole numbers held in float32, where sums stay exact below 2^24.
`native` has the same functions for float32 on a CPU; a step is described here.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

from fedbnn_core.binary.conv_shape import ConvShape, Pool
from fedbnn_core.binary.rounding import Key, round_gradient

__all__ = [
    "affine",
    "convolve",
    "input_gradient",
    "moments",
    "norm_sums",
    "pool",
    "round_output_gradient",
    "signs",
    "weight_gradient",
]


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


def pool(shape: ConvShape, y: Tensor, flip: Tensor) -> Tensor:
    """Return the largest of 2 x 2 values of y * flip, times flip."""
    return F.max_pool2d(y * flip[:, None, None], 2) * flip[:, None, None]


def moments(shape: ConvShape, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return sum(y) and sum(y^2) of every channel, float64."""
    wide = y.to(torch.float64)
    return wide.sum(dim=(0, 2, 3)), wide.square().sum(dim=(0, 2, 3))


def affine(y: Tensor, gain: Tensor, offset: Tensor) -> Tensor:
    """Return y * gain + offset of every channel."""
    return (y * gain[:, None, None]).add_(offset[:, None, None])


def norm_sums(dz: Tensor, y: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Return sum(dz) and sum(dz * (y - mean)) of every channel, float64."""
    centred = y - mean[:, None, None]
    products = (dz * centred).sum(dim=(0, 2, 3), dtype=torch.float64)
    return dz.sum(dim=(0, 2, 3), dtype=torch.float64), products


def round_output_gradient(
    shape: ConvShape,
    dz: Tensor,
    y: Tensor | None,
    normed: Tensor | None,
    norm: Tensor | None,
    pooling: Pool,
    bits: int,
    key: Key,
) -> tuple[Tensor, Tensor]:
    """Return dL/dy rounded to so many bits, and its scale.

    Behind a batch norm dL/dy = gain * dz + constant + linear * y, where ``norm`` holds
    gain, constant, linear and flip of every channel. A max-pool before or behind the
    norm hands dz to the first of the largest values; ``normed`` is y as the norm, or
    the pool behind it, saw it. Without a norm dL/dy = dz.
    """
    if norm is None or y is None or normed is None:
        return round_gradient(dz, bits, key)
    gain, constant, linear, flip = norm[:, :, None, None]
    spread = gain * dz
    if pooling is Pool.NONE:
        return round_gradient(spread + (constant + linear * y), bits, key)
    if pooling is Pool.BEFORE:
        spread = spread + (constant + linear * normed)
    ordered = y * flip
    _, where = F.max_pool2d(ordered, 2, return_indices=True)
    dy = F.max_unpool2d(spread, where, [2, 2], output_size=list(y.shape[2:]))
    if pooling is Pool.AFTER:
        dy = dy + (constant + linear * y)
    return round_gradient(dy, bits, key)


def input_gradient(
    shape: ConvShape,
    q: Tensor,
    weight: Tensor,
    code: Tensor,
    scale: Tensor,
    unit: float,
) -> Tensor:
    """Return conv^T(q, weight) * code * (scale * unit)."""
    input_size = (q.shape[0], shape.in_channels, shape.height, shape.width)
    sums: Tensor = conv2d_input(  # type: ignore[no-untyped-call]
        input_size,
        weight,
        q,
        stride=shape.stride,
        padding=shape.padding,
        groups=shape.groups,
    )
    return (sums * code) * (scale.to(torch.float64) * unit).to(sums.dtype)


def weight_gradient(
    shape: ConvShape, q: Tensor, a: Tensor, scale: Tensor, like: Tensor
) -> Tensor:
    """Return corr(a, q) * scale in the shape of ``like``; padded taps are +1."""
    sums: Tensor = conv2d_weight(  # type: ignore[no-untyped-call]
        a.to(q.dtype) - 1,
        like.shape,
        q,
        stride=shape.stride,
        padding=shape.padding,
        groups=shape.groups,
    )
    return (sums + q.sum(dim=(0, 2, 3))[:, None, None, None]) * scale

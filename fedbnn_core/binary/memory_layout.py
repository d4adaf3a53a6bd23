"""Steps of a network whose gradients come in the memory layout of their input.

torch's own steps return a plain layout from a mean over pixels and from every second
pixel. Residual additions hand it on to all layers before, and batch norms, whose input
is channels-last, then take five times as long.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["channels_last", "hardtanh", "pixel_mean", "subsample"]


def channels_last(weights: Tensor) -> Tensor:
    """Return a copy in channels-last layout, the one CPU convolutions run fastest in.

    The strides are set explicitly: for one input channel `Tensor.to` would keep the
    plain layout, and the whole network behind the layer would follow it.
    """
    _, c, h, w = weights.shape
    strides = (c * h * w, 1, w * c, c)
    out = torch.empty_strided(
        weights.shape, strides, dtype=weights.dtype, device=weights.device
    )
    return out.copy_(weights)


class _Hardtanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.hardtanh(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        out = torch.empty_like(x)
        torch.ops.aten.hardtanh_backward(grad, x, -1.0, 1.0, grad_input=out)
        return out


def hardtanh(x: Tensor) -> Tensor:
    """Return x clamped to [-1, 1], the non-linearity of the binary nets."""
    result: Tensor = _Hardtanh.apply(x)  # type: ignore[no-untyped-call]
    return result


class _PixelMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.like = torch.empty_like(x, device="meta")
        return x.mean(dim=(2, 3))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        full = torch.empty_like(ctx.like, device=grad.device)
        pixels = full.shape[2] * full.shape[3]
        return full.copy_((grad / pixels)[:, :, None, None])


def pixel_mean(x: Tensor) -> Tensor:
    """Return the mean over the pixels of x (n, c, h, w)."""
    result: Tensor = _PixelMean.apply(x)  # type: ignore[no-untyped-call]
    return result


class _Subsample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, step: int) -> Tensor:
        ctx.step, ctx.like = step, torch.empty_like(x, device="meta")
        return x[:, :, ::step, ::step]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        full = torch.zeros_like(ctx.like, device=grad.device)
        full[:, :, :: ctx.step, :: ctx.step] = grad
        return full, None


def subsample(x: Tensor, step: int) -> Tensor:
    """Return every ``step``-th row and column of x (n, c, h, w)."""
    if step == 1:
        return x
    result: Tensor = _Subsample.apply(x, step)  # type: ignore[no-untyped-call]
    return result

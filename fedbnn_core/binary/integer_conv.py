"""A binary convolution, and the batch norm behind it, trained in integers.

Forward the sums of +-1 are whole numbers, and so are their batch sums. Backward

    dL/dx = conv^T(q, b) * s * F'(x),   dL/db = corr(a, q) * s

with a = sign(x), b the weights' signs, and q * s the gradient of the sums rounded to
8, 6 or 4 bits (`rounding`). Kept for the backward pass are bits of a, F'(x) in 8 bits
and, where they are few, the sums. The steps are written twice: `torch_steps`, for any
device, and `native_steps` in C, for a CPU.
"""

import math
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedbnn_core.binary import native_steps, torch_steps
from fedbnn_core.binary.conv_shape import ConvShape, Pool
from fedbnn_core.binary.rounding import Key

__all__ = [
    "Statistics",
    "Surrogate",
    "clamped_sum",
    "convolve_signs",
    "normalized_conv",
]

_CODES = 255.0
_KEPT_BYTES = 2**21
"""More sums than this are made anew for the backward pass: it takes 3 % of a step, and
they are half of all that a ResNet18 would keep."""


class Surrogate(NamedTuple):
    """F'(x) = k * (sqrt(2) * t - t^2 * |x|) where that is positive and |x| < limit."""

    t: float
    k: float
    limit: float

    @property
    def steep(self) -> float:
        """Return how fast F' falls with |x|, if F'(0) is 255."""
        return _CODES * self.t / math.sqrt(2.0)

    @property
    def unit(self) -> float:
        """Return F' of one 255th."""
        return self.k * math.sqrt(2.0) * self.t / _CODES


class Statistics(NamedTuple):
    """The batch statistics of a norm, in the `widest` type.

    ``variance`` is the biased one, ``values`` says of how many values a channel.
    """

    mean: Tensor
    variance: Tensor
    values: int


def steps_for(shape: ConvShape, x: Tensor) -> ModuleType:
    """Return the module whose functions train this convolution."""
    return native_steps if native_steps.supports(shape, x) else torch_steps


class _ConvolveSigns(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        shape: ConvShape,
        surrogate: Surrogate,
        bits: int,
        key: Key,
    ) -> Tensor:
        ctx.steps = steps = steps_for(shape, x)
        a, code = steps.signs(x, surrogate.steep, surrogate.limit)
        y: Tensor = steps.convolve(shape, a, weight)
        ctx.save_for_backward(a, code, weight.to(torch.int8))
        ctx.settings = (shape, surrogate, bits, key)
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, code, weight = ctx.saved_tensors
        shape, _, bits, key = ctx.settings
        rounded = ctx.steps.round_output_gradient(shape, grad, bits, key)
        return _products(ctx, rounded, a, code, weight)


def _products(
    ctx: Any, rounded: Any, a: Tensor, code: Tensor, weight: Tensor
) -> tuple[Tensor | None, ...]:
    """Return dL/dx and dL/db, and None for the other arguments of the function."""
    shape, surrogate = ctx.settings[:2]
    dx = dw = None
    if ctx.needs_input_grad[0]:
        dx = ctx.steps.input_gradient(shape, rounded, weight, code, surrogate.unit)
    if ctx.needs_input_grad[1]:
        dw = ctx.steps.weight_gradient(shape, rounded, a, weight)
    return (dx, dw, *(None,) * 4)


class _NormalizedConv(torch.autograd.Function):
    """Batch norm, and a 2 x 2 max-pool before or behind it, of a convolution of signs.

    The steps' `normalize` and `norm_gradient` hold the formulas.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        shape: ConvShape,
        surrogate: Surrogate,
        bits: int,
        key: Key,
        gamma: Tensor,
        beta: Tensor,
        eps: float,
        pool: Pool,
    ) -> tuple[Tensor, Tensor]:
        ctx.steps = steps = steps_for(shape, x)
        a, code = steps.signs(x, surrogate.steep, surrogate.limit)
        y = steps.convolve(shape, a, weight)
        out, saved = steps.normalize(shape, y, gamma, beta, eps, pool)
        made_anew = steps is native_steps and y.nbytes > _KEPT_BYTES
        kept = None if made_anew else y
        ctx.save_for_backward(a, code, kept, weight.to(torch.int8), gamma, saved)
        ctx.settings = (shape, surrogate, bits, key, pool)
        ctx.mark_non_differentiable(saved)
        return out, saved

    @staticmethod
    def backward(ctx: Any, dz: Tensor, _saved: Tensor) -> tuple[Tensor | None, ...]:
        a, code, y, weight, gamma, saved = ctx.saved_tensors
        shape, _, bits, key, pool = ctx.settings
        if y is None:
            y = ctx.steps.convolve(shape, a, weight.float())
        rounded, dgamma, dbeta = ctx.steps.norm_gradient(
            shape, dz, y, gamma, saved, pool, bits, key
        )
        gradients = _products(ctx, rounded, a, code, weight)
        return (*gradients, dgamma, dbeta, None, None)


class _ClampedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        fits = native_steps.takes(a) and native_steps.takes(b)
        ctx.steps = native_steps if fits else torch_steps
        out: Tensor
        out, inside = ctx.steps.clamped_sum(a, b)
        ctx.save_for_backward(inside)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        masked = ctx.steps.mask(grad, *ctx.saved_tensors)
        return masked, masked


def clamped_sum(a: Tensor, b: Tensor) -> Tensor:
    """Return hardtanh(a + b), which keeps a byte a value for the backward pass."""
    out: Tensor = _ClampedSum.apply(a, b)  # type: ignore[no-untyped-call]
    return out


def convolve_signs(
    x: Tensor,
    weight: Tensor,
    shape: ConvShape,
    surrogate: Surrogate,
    *,
    bits: int,
    key: Key,
) -> Tensor:
    """Return conv(sign(x), weight), whose gradient is rounded to so many bits.

    Parameters
    ----------
    x : pre-activations (n, c, h, w).
    weight : +-1 (c_o, c / groups, k, k), channels-last.
    shape : the convolution; padded taps are +1.
    surrogate : the gradient of the sign.
    bits, key : size and random numbers of the rounded gradient.
    """
    out: Tensor = _ConvolveSigns.apply(  # type: ignore[no-untyped-call]
        x, weight, shape, surrogate, bits, key
    )
    return out


def normalized_conv(
    x: Tensor,
    weight: Tensor,
    shape: ConvShape,
    surrogate: Surrogate,
    *,
    bits: int,
    key: Key,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    pool: Pool,
) -> tuple[Tensor, Statistics]:
    """Return the batch norm of `convolve_signs`, pooled if asked, and its statistics.

    ``gamma`` and ``beta`` are the norm's weight and bias.
    """
    out, saved = _NormalizedConv.apply(  # type: ignore[no-untyped-call]
        x, weight, shape, surrogate, bits, key, gamma, beta, eps, pool
    )
    height, width = shape.output
    if pool is Pool.BEFORE:
        height, width = height // 2, width // 2
    mean, variance = saved[:2]
    return out, Statistics(mean, variance, shape.batch * height * width)

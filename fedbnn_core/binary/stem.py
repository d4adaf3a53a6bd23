"""The float convolution in front of a binary network, and the batch norm behind it.

A sign must not depend on the order in which a machine sums. Evaluation sums the
convolution in float64 and rounds once, as the packed runtime does; training keeps
float32. Where the binary layers train in integers, batch norm and max-pool behind the
stem are the same few passes as behind them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fedbnn_core.binary.conv_shape import ConvShape, Pool
from fedbnn_core.binary.devices import widest
from fedbnn_core.binary.integer_conv import Statistics, steps_for
from fedbnn_core.binary.options import BinaryOptions

__all__ = ["StemConv2d", "normalized_floats"]


class StemConv2d(nn.Conv2d):
    """The float convolution in front of a binary network.

    Parameters
    ----------
    *args, **kwargs : as for `torch.nn.Conv2d`.
    options : how the network's binary layers are trained.
    """

    def __init__(
        self, *args: Any, options: BinaryOptions | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.options = options or BinaryOptions()

    @property
    def in_integers(self) -> bool:
        """Return whether the binary layers behind it train in integers."""
        return self.training and self.options.bits_for(self.weight) < 32

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution; in evaluation on a CPU summed in float64."""
        if self.training:
            return super().forward(input)
        wide = widest(input)
        bias = None if self.bias is None else self.bias.to(wide)
        result: Tensor = self._conv_forward(input.to(wide), self.weight.to(wide), bias)
        return result.to(input.dtype)


class _NormalizedFloats(torch.autograd.Function):
    """The steps' `normalize` and `float_norm_gradient`."""

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        shape: ConvShape,
        gamma: Tensor,
        beta: Tensor,
        eps: float,
        pool: Pool,
    ) -> tuple[Tensor, Tensor]:
        ctx.steps = steps_for(shape, y)
        y = y.contiguous(memory_format=torch.channels_last)
        out, saved = ctx.steps.normalize(shape, y, gamma, beta, eps, pool)
        ctx.save_for_backward(y, gamma, saved)
        ctx.settings = (shape, pool)
        ctx.mark_non_differentiable(saved)
        return out, saved

    @staticmethod
    def backward(ctx: Any, dz: Tensor, _saved: Tensor) -> tuple[Tensor | None, ...]:
        y, gamma, saved = ctx.saved_tensors
        shape, pool = ctx.settings
        dy, dgamma, dbeta = ctx.steps.float_norm_gradient(
            shape, dz, y, gamma, saved, pool
        )
        return dy, None, dgamma, dbeta, None, None


def normalized_floats(
    y: Tensor, gamma: Tensor, beta: Tensor, *, eps: float, pool: Pool
) -> tuple[Tensor, Statistics]:
    """Return the batch norm of float y, pooled if asked, and its statistics.

    ``gamma`` and ``beta`` are the norm's weight and bias.
    """
    n, c, height, width = y.shape
    shape = ConvShape(n, height, width, c, c, 1, 1, 0, 1)
    out, saved = _NormalizedFloats.apply(  # type: ignore[no-untyped-call]
        y, shape, gamma, beta, eps, pool
    )
    if pool is Pool.BEFORE:
        height, width = height // 2, width // 2
    mean, variance = saved[:2]
    return out, Statistics(mean, variance, n * height * width)

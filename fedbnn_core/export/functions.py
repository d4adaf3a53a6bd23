"""Packers of functions and methods of tensors.

A packer receives the `Lowering` and the call's arguments: a `Draft` for each tensor
that depends on the image, numbers as they are.
"""

import operator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from fedbnn_core.binary.memory_layout import hardtanh, pixel_mean, subsample
from fedbnn_core.export.folding import (
    CLAMP,
    Draft,
    Floats,
    Pool,
    Rank,
    array,
    residual_step,
    scale_step,
    shift_step,
)
from fedbnn_core.export.lowering import Lowering, Packer, PackingError
from fedbnn_core.packed.graph import MAX_KERNEL, MAX_STRIDE, Kind

__all__ = [
    "FUNCTIONS",
    "HELPERS",
    "METHODS",
    "clamp",
    "flatten",
    "max_pool",
    "mean",
    "pair",
    "per_channel",
    "refuse_if",
    "window",
]

HELPERS = (hardtanh, pixel_mean, subsample)
"""Functions of ours that networks call."""

Pair = int | tuple[int, int]


def refuse_if(condition: bool, reason: str) -> None:
    """Raise `PackingError` with the reason."""
    if condition:
        raise PackingError(reason)


def pair(value: Any) -> tuple[int, int]:
    """Return (rows, columns) of a number or a pair."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def window(kernel: Any, stride: Any) -> tuple[tuple[int, int], int]:
    """Return kernel and stride if the format holds them."""
    sides, steps = pair(kernel), pair(stride)
    refuse_if(
        max(sides) > MAX_KERNEL, f"kernels have at most {MAX_KERNEL}x{MAX_KERNEL} taps"
    )
    refuse_if(steps[0] != steps[1], "a stride must be the same in both directions")
    refuse_if(steps[0] > MAX_STRIDE, f"strides are at most {MAX_STRIDE}")
    return sides, steps[0]


def per_channel(low: Lowering, x: Draft) -> None:
    """Refuse to treat pixels as channels."""
    refuse_if(
        len(low.shape) not in (2, 4) or (len(low.shape) == 2 and x.shape[1:] != (1, 1)),
        "it must act on channels: put it in front of the flattening",
    )


def max_pool(
    low: Lowering,
    x: Draft,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Draft:
    """Pack a maximum over windows; the arguments are those of torch."""
    plain = pair(padding) == (0, 0) and pair(dilation) == (1, 1)
    refuse_if(
        not plain or ceil_mode or return_indices,
        "max pooling has no padding, dilation, ceil_mode or indices in a packed file",
    )
    return low.extend(x, Pool(*window(kernel_size, stride or kernel_size)))


def mean(low: Lowering, x: Draft) -> Draft:
    """Pack the mean over all pixels."""
    refuse_if(
        low.shape[2:] not in ((), (1, 1)),
        "only the mean over all pixels has a packed form, not one over windows",
    )
    return low.draft(Kind.MEAN, x.shape[0], x)


def _mean_function(
    low: Lowering, x: Draft, dim: Any = None, keepdim: bool = False
) -> Draft:
    dims = {d % 4 for d in dim} if isinstance(dim, list | tuple) else set()
    refuse_if(dims != {2, 3}, "only the mean over all pixels has a packed form")
    return mean(low, x)


def clamp(
    low: Lowering,
    x: Draft,
    min_val: float = -1.0,
    max_val: float = 1.0,
    inplace: bool = False,
) -> Draft:
    """Pack hardtanh."""
    refuse_if((min_val, max_val) != (-1, 1), "a clamp must be that to [-1, 1]")
    return low.extend(x, CLAMP)


def _clamp_function(
    low: Lowering, x: Draft, min: float | None = None, max: float | None = None
) -> Draft:
    refuse_if((min, max) != (-1, 1), "a clamp must be that to [-1, 1]")
    return low.extend(x, CLAMP)


def _add(low: Lowering, a: Any, b: Any) -> Draft:
    if not isinstance(a, Draft):
        a, b = b, a
    if not isinstance(b, Draft):
        return low.extend(a, shift_step(_channel_constant(low, a, b)))
    refuse_if(a.shape != b.shape, "only values of the same shape can be added")
    if b.takes(Rank.RESIDUAL) and not a.takes(Rank.RESIDUAL):
        a, b = b, a
    return low.extend(a, residual_step(low.emit(b)))


def _multiply(low: Lowering, a: Any, b: Any) -> Draft:
    if not isinstance(a, Draft):
        a, b = b, a
    refuse_if(
        isinstance(b, Draft), "a product of two layers' results has no packed form"
    )
    return low.extend(a, scale_step(_channel_constant(low, a, b)))


def _channel_constant(low: Lowering, x: Draft, constant: Any) -> Floats:
    per_channel(low, x)
    channels = x.shape[0]
    shape = (1, channels, *(1,) * (len(low.shape) - 2))
    try:
        spread = torch.as_tensor(constant).detach().broadcast_to(shape)
    except RuntimeError:
        raise PackingError("a constant must be one number per channel") from None
    return array(spread.reshape(channels)).copy()


def _pad(
    low: Lowering, x: Draft, pad: Any, mode: str = "constant", value: Any = None
) -> Draft:
    refuse_if(
        mode != "constant" or value not in (None, 0) or len(pad) != 4 or min(pad) < 0,
        "only zeros around the pixels of a float convolution have a packed form",
    )
    left, right, top, bottom = pad
    fields = {"zeros around": ((top, left, bottom, right), x)}
    return Draft((x.shape[0], *low.shape[2:]), None, None, fields=fields)  # type: ignore[arg-type]


def _as_it_is(low: Lowering, x: Draft, *args: Any, **kwargs: Any) -> Draft:
    return x


def flatten(low: Lowering, x: Draft, *args: Any, **kwargs: Any) -> Draft:
    """Hand features on: a linear layer reads them in (channel, row, column) order."""
    expected = (low.shape[0], int(np.prod(x.shape)))
    same = low.shape[1:] == x.shape
    refuse_if(
        low.shape != expected and not same, "only flattening each image is possible"
    )
    return x


def _subsample(low: Lowering, x: Draft, step: int) -> Draft:
    return max_pool(low, x, 1, step)


def _dropout(
    low: Lowering,
    x: Draft,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> Draft:
    refuse_if(training, "it must be off in evaluation: pass training=self.training")
    return x


FUNCTIONS: dict[Any, Packer] = {
    operator.add: _add,
    operator.iadd: _add,
    torch.add: _add,
    operator.mul: _multiply,
    operator.imul: _multiply,
    torch.mul: _multiply,
    hardtanh: clamp,
    F.hardtanh: clamp,
    torch.clamp: _clamp_function,
    F.max_pool2d: max_pool,
    torch.max_pool2d: max_pool,
    F.adaptive_avg_pool2d: lambda low, x, output_size: mean(low, x),
    torch.mean: _mean_function,
    pixel_mean: mean,
    torch.flatten: flatten,
    torch.reshape: flatten,
    subsample: _subsample,
    F.pad: _pad,
    F.dropout: _dropout,
}

METHODS: dict[str, Packer] = {
    "add": _add,
    "add_": _add,
    "mul": _multiply,
    "mul_": _multiply,
    "clamp": _clamp_function,
    "clamp_": _clamp_function,
    "mean": _mean_function,
    "flatten": flatten,
    "view": flatten,
    "reshape": flatten,
    "squeeze": flatten,
    "contiguous": _as_it_is,
}

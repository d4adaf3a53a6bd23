"""The steps of an integer binary convolution in C, for float32 on a CPU.

The functions are those of `torch_steps`, with the same results; signs are bits, sums
are int16 and the rounded gradient is a byte per value in a layout of its own.
"""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from fedbnn_core.binary.conv_shape import ConvShape, Pool
from fedbnn_core.binary.rounding import LEVELS, Key

_train: Any
try:
    _train = import_module("fedbnn_core.binary._train")
except ImportError:  # no C compiler at installation
    _train = None

__all__ = [
    "affine",
    "convolve",
    "input_gradient",
    "kernels",
    "moments",
    "norm_sums",
    "pool",
    "round_output_gradient",
    "signs",
    "supports",
    "use_kernel",
    "weight_gradient",
]

_MAX_CHANNELS, _MAX_FAN_IN = 16384, 32767
_kernel = "auto"


def kernels() -> list[str]:
    """Return the kernel sets that this CPU can run, fastest first."""
    names: list[str] = [] if _train is None else _train.kernels()
    return names


def use_kernel(name: str) -> None:
    """Choose a kernel set by name, "auto" for the fastest."""
    if name != "auto" and name not in kernels():
        raise ValueError(f"no training kernel {name!r} here; choose from {kernels()}")
    global _kernel
    _kernel = name


def supports(shape: ConvShape, x: Tensor) -> bool:
    """Return whether there is native code for this convolution and tensor."""
    return (
        _train is not None
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and shape.groups == 1
        and shape.padding < shape.kernel
        and shape.in_channels <= _MAX_CHANNELS
        and shape.fan_in <= _MAX_FAN_IN
        and min(shape) > -1
        and min(shape[:5]) > 0
        and min(shape.output) > 0
    )


def _rows(x: Tensor) -> Tensor:
    """Return x (n, c, h, w) with its values in the order (n, h, w, c).

    The caller keeps the result: an address does not keep its tensor alive.
    """
    return x.contiguous(memory_format=torch.channels_last)


def _empty(shape: ConvShape, size: tuple[int, int], dtype: torch.dtype) -> Tensor:
    n, c = shape.batch, shape.out_channels
    return torch.empty((n, c, *size), dtype=dtype, memory_format=torch.channels_last)


def signs(x: Tensor, steep: float, limit: float) -> tuple[Tensor, Tensor]:
    """Return the bits of sign(x) by pixel and the surrogate gradient in 8 bits."""
    x = _rows(x)
    n, c, h, w = x.shape
    bits = torch.empty((n, h, w, (c + 7) // 8), dtype=torch.uint8)
    code = torch.empty((n, h, w, c), dtype=torch.uint8)
    _train.signs(
        _kernel,
        x.data_ptr(),
        n * h * w,
        c,
        steep,
        limit,
        bits.data_ptr(),
        code.data_ptr(),
    )
    return bits, code


def convolve(shape: ConvShape, a: Tensor, weight: Tensor) -> Tensor:
    """Return the sums of the convolution, int16."""
    y = _empty(shape, shape.output, torch.int16)
    weight = _rows(weight)
    _train.forward(_kernel, shape, a.data_ptr(), weight.data_ptr(), y.data_ptr())
    return y


def pool(shape: ConvShape, y: Tensor, flip: Tensor) -> Tensor:
    """Return the largest of 2 x 2 values of y * flip, times flip."""
    height, width = shape.output
    out = _empty(shape, (height // 2, width // 2), torch.int16)
    _train.pool(_kernel, shape, y.data_ptr(), flip.data_ptr(), out.data_ptr())
    return out


def moments(shape: ConvShape, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return sum(y) and sum(y^2) of every channel, int64."""
    channels = y.shape[1]
    sums, squares = torch.empty((2, channels), dtype=torch.int64)
    _train.moments(
        _kernel,
        y.data_ptr(),
        y.numel() // channels,
        channels,
        shape.fan_in,
        sums.data_ptr(),
        squares.data_ptr(),
    )
    return sums, squares


def affine(y: Tensor, gain: Tensor, offset: Tensor) -> Tensor:
    """Return y * gain + offset of every channel, float32."""
    out = torch.empty_like(y, dtype=torch.float32)
    channels = y.shape[1]
    _train.affine(
        _kernel,
        y.data_ptr(),
        y.numel() // channels,
        channels,
        gain.data_ptr(),
        offset.data_ptr(),
        out.data_ptr(),
    )
    return out


def norm_sums(dz: Tensor, y: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Return sum(dz) and sum(dz * (y - mean)) of every channel, float64."""
    dz, channels = _rows(dz), y.shape[1]
    sums, products = torch.empty((2, channels), dtype=torch.float64)
    _train.norm_sums(
        _kernel,
        dz.data_ptr(),
        y.data_ptr(),
        y.numel() // channels,
        channels,
        mean.data_ptr(),
        sums.data_ptr(),
        products.data_ptr(),
    )
    return sums, products


def round_output_gradient(
    shape: ConvShape,
    dz: Tensor,
    y: Tensor | None,
    normed: Tensor | None,
    norm: Tensor | None,
    pooling: Pool,
    bits: int,
    key: Key,
) -> tuple[Tensor, float]:
    """Return dL/dy rounded to so many bits, and its scale."""
    _, size = _train.sizes(shape)
    rounded = torch.empty(size, dtype=torch.uint8)
    dz = _rows(dz)
    parts = [0] * 5
    if norm is not None and y is not None:
        parts = [y.data_ptr(), *(part.data_ptr() for part in norm)]
    scale = _train.round(
        _kernel,
        shape,
        dz.data_ptr(),
        *parts,
        pooling.value,
        LEVELS[bits],
        *key,
        rounded.data_ptr(),
    )
    return rounded, scale


def input_gradient(
    shape: ConvShape,
    q: Tensor,
    weight: Tensor,
    code: Tensor,
    scale: float,
    unit: float,
) -> Tensor:
    """Return conv^T(q, weight) * code * (scale * unit)."""
    size = (shape.batch, shape.in_channels, shape.height, shape.width)
    dx = torch.empty(size, memory_format=torch.channels_last)
    weight = _rows(weight)
    _train.input_gradient(
        _kernel,
        shape,
        q.data_ptr(),
        weight.data_ptr(),
        code.data_ptr(),
        scale * unit,
        dx.data_ptr(),
    )
    return dx


def weight_gradient(
    shape: ConvShape, q: Tensor, a: Tensor, scale: float, like: Tensor
) -> Tensor:
    """Return corr(a, q) * scale in the shape of ``like``."""
    dw = torch.empty(like.shape)
    _train.weight_gradient(
        _kernel, shape, q.data_ptr(), a.data_ptr(), scale, dw.data_ptr()
    )
    return dw

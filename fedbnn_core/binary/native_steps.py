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
    "Rounded",
    "clamped_sum",
    "convolve",
    "float_norm_gradient",
    "input_gradient",
    "kernel",
    "kernels",
    "library",
    "mask",
    "norm_gradient",
    "normalize",
    "round_output_gradient",
    "signs",
    "supports",
    "takes",
    "use_kernel",
    "weight_gradient",
]

Rounded = tuple[Tensor, float]
"""Bytes q + 128, with zeros around every image, and the scale s."""

_MAX_CHANNELS, _MAX_FAN_IN = 16384, 32767
_MAX_DEPTHWISE_KERNEL = 15
_kernel = "auto"


def kernels() -> list[str]:
    """Return the kernel sets that this CPU can run, fastest first."""
    names: list[str] = [] if _train is None else _train.kernels()
    return names


def kernel() -> str:
    """Return the name of the chosen kernel set."""
    return _kernel


def library() -> Any:
    """Return the compiled functions, where there are any (`takes`)."""
    return _train


def use_kernel(name: str) -> None:
    """Choose a kernel set by name, "auto" for the fastest."""
    if name != "auto" and name not in kernels():
        raise ValueError(f"no training kernel {name!r} here; choose from {kernels()}")
    global _kernel
    _kernel = name


def takes(x: Tensor) -> bool:
    """Return whether there is native code for tensors like this one."""
    return _train is not None and x.device.type == "cpu" and x.dtype == torch.float32


def supports(shape: ConvShape, x: Tensor) -> bool:
    """Return whether there is native code for this convolution and tensor."""
    return (
        takes(x)
        and (shape.groups == 1 or _is_depthwise(shape))
        and shape.padding < shape.kernel
        and shape.in_channels <= _MAX_CHANNELS
        and shape.fan_in <= _MAX_FAN_IN
        and min(shape) > -1
        and min(shape[:5]) > 0
        and min(shape.output) > 0
    )


def _is_depthwise(shape: ConvShape) -> bool:
    """Return whether each channel has one filter of its own, small enough, stride 1."""
    one_each = shape.groups == shape.in_channels == shape.out_channels
    return one_each and shape.stride == 1 and shape.kernel <= _MAX_DEPTHWISE_KERNEL


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


def normalize(
    shape: ConvShape, y: Tensor, gamma: Tensor, beta: Tensor, eps: float, pool: Pool
) -> tuple[Tensor, Tensor]:
    """Return the batch norm of y, pooled if asked, and what its gradient needs.

    y is int16 sums, or float32 in channels-last layout.
    """
    size = shape.output
    if pool is not Pool.NONE:
        size = size[0] // 2, size[1] // 2
    out = _empty(shape, size, torch.float32)
    saved = torch.empty((4, shape.out_channels), dtype=torch.float64)
    _train.normalize(
        _kernel,
        shape,
        y.dtype.is_floating_point,
        y.data_ptr(),
        pool.value,
        gamma.data_ptr(),
        beta.data_ptr(),
        eps,
        out.data_ptr(),
        saved.data_ptr(),
    )
    return out, saved


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
    q = torch.empty(_train.sizes(shape)[1], dtype=torch.uint8)
    dz = _rows(dz)
    dgamma, dbeta = torch.empty_like(gamma), torch.empty_like(gamma)
    scale = _train.norm_gradient(
        _kernel,
        shape,
        dz.data_ptr(),
        y.data_ptr(),
        pool.value,
        gamma.data_ptr(),
        saved.data_ptr(),
        LEVELS[bits],
        *key,
        q.data_ptr(),
        dgamma.data_ptr(),
        dbeta.data_ptr(),
    )
    return (q, scale), dgamma, dbeta


def float_norm_gradient(
    shape: ConvShape, dz: Tensor, y: Tensor, gamma: Tensor, saved: Tensor, pool: Pool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dL/dy of float32 y, dL/dgamma and dL/dbeta, given dL/dout."""
    dz, dy = _rows(dz), _empty(shape, shape.output, torch.float32)
    dgamma, dbeta = torch.empty_like(gamma), torch.empty_like(gamma)
    _train.float_norm_gradient(
        _kernel,
        shape,
        dz.data_ptr(),
        y.data_ptr(),
        pool.value,
        gamma.data_ptr(),
        saved.data_ptr(),
        dy.data_ptr(),
        dgamma.data_ptr(),
        dbeta.data_ptr(),
    )
    return dy, dgamma, dbeta


def clamped_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return hardtanh(a + b), and where its gradient is not zero."""
    a, b = _rows(a), _rows(b)
    out, inside = torch.empty_like(a), torch.empty_like(a, dtype=torch.bool)
    _train.clamped_sum(
        _kernel,
        a.data_ptr(),
        b.data_ptr(),
        a.numel(),
        out.data_ptr(),
        inside.data_ptr(),
    )
    return out, inside


def mask(grad: Tensor, inside: Tensor) -> Tensor:
    """Return the gradient where ``inside`` is set, else 0."""
    grad = _rows(grad)
    out = torch.empty_like(grad)
    _train.mask(
        _kernel, grad.data_ptr(), inside.data_ptr(), grad.numel(), out.data_ptr()
    )
    return out


def round_output_gradient(shape: ConvShape, dy: Tensor, bits: int, key: Key) -> Rounded:
    """Return dL/dy rounded to so many bits, and its scale."""
    q = torch.empty(_train.sizes(shape)[1], dtype=torch.uint8)
    dy = _rows(dy)
    scale = _train.round(
        _kernel, shape, dy.data_ptr(), LEVELS[bits], *key, q.data_ptr()
    )
    return q, scale


def input_gradient(
    shape: ConvShape, rounded: Rounded, weight: Tensor, code: Tensor, unit: float
) -> Tensor:
    """Return conv^T(q, weight) * code * (s * unit)."""
    q, scale = rounded
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
    shape: ConvShape, rounded: Rounded, a: Tensor, like: Tensor
) -> Tensor:
    """Return corr(a, q) * s in the shape of ``like``."""
    q, scale = rounded
    dw = torch.empty(like.shape)
    _train.weight_gradient(
        _kernel, shape, q.data_ptr(), a.data_ptr(), scale, dw.data_ptr()
    )
    return dw

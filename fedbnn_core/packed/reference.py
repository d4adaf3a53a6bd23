"""Run a packed network with numpy: the definition that every kernel must match.

Sums that decide about signs are taken in float64, in one fixed order, and rounded once;
the affine epilogue is a fused multiply-add. The C kernels do the same, so their results
are equal bit for bit.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from fedbnn_core.packed.graph import Graph, Kind, Operation, present

__all__ = ["fma", "normalise", "preactivations", "run", "signs"]

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]

_LANES = 16
_ONE = np.float32(1)


def normalise(graph: Graph, pixels: npt.NDArray[np.uint8]) -> Floats:
    """Return raw pixels (..., c) normalised as the network was trained."""
    return fma(pixels.astype(np.float32), graph.pixel_scale, graph.pixel_shift)


def run(graph: Graph, images: Floats) -> Floats:
    """Return logits (n, classes) of normalised images (n, h, w, c)."""
    logits = np.empty((len(images), len(graph.class_names)), np.float32)
    for begin in range(0, len(images), 64):  # bounds the memory of a large batch
        *_, (_, _, result) = _execute(graph, images[begin : begin + 64])
        logits[begin : begin + 64] = result.reshape(-1, logits.shape[1])
    return logits


def preactivations(graph: Graph, images: Floats) -> dict[int, npt.NDArray[np.int32]]:
    """Return the integer sums (n, h, w, c) of every binary convolution by index."""
    return {
        index: sums.astype(np.int32)
        for index, sums, _ in _execute(graph, images)
        if sums is not None
    }


def fma(x: Floats, gain: Floats, offset: Floats) -> Floats:
    """Return x * gain + offset with a single rounding to float32.

    The product of two floats is exact in float64. Rounding the sum to odd there
    (keeping a trace of what was cut off) makes the second rounding harmless.
    """
    product = x.astype(np.float64) * gain.astype(np.float64)
    addend = np.broadcast_to(offset.astype(np.float64), product.shape)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    even = (total.view(np.int64) & 1) == 0
    towards = np.where(error > 0, np.inf, -np.inf)
    odd = np.where((error != 0) & even, np.nextafter(total, towards), total)
    return odd.astype(np.float32)


def signs(op: Operation, shape: tuple[int, ...]) -> Floats:
    """Return the weights of a binary convolution as +1.0 and -1.0."""
    bits = np.unpackbits(present(op.bits), count=int(np.prod(shape)), bitorder="little")
    return (2.0 * bits - 1.0).astype(np.float32).reshape(shape)


def _execute(
    graph: Graph, images: Floats
) -> Iterator[tuple[int, Floats | None, Floats]]:
    """Yield (index, sums of a binary convolution, float output) step by step."""
    floats: dict[int, Floats] = {}
    bits: dict[int, Bits] = {}
    for index, op in enumerate(graph.operations):
        sums: Floats | None = None
        if op.kind is Kind.INPUT:
            value = images
        elif op.kind is Kind.BITPOOL:
            bits[present(op.out_bits)] = _bit_pool(op, bits[present(op.input)])
            continue
        elif op.kind is Kind.BCONV:
            value = sums = _binary_conv(op, bits[present(op.input)])
        else:
            value = _float_operation(op, floats[present(op.input)])
        if op.thresholds is not None:
            bits[present(op.out_bits)] = (value >= op.thresholds) ^ present(op.flips)
        else:
            residual = None if op.residual is None else floats[op.residual]
            value = _finish(op, value, residual)
            if op.out_float is not None:
                floats[op.out_float] = value
            if op.out_bits is not None:
                bits[op.out_bits] = value >= 0
        yield index, sums, value


def _finish(op: Operation, value: Floats, residual: Floats | None) -> Floats:
    if op.kind is Kind.BCONV and op.bias is not None:
        value = value + op.bias
    if op.gain is not None and op.offset is not None and op.kind is not Kind.LAYERNORM:
        value = fma(value, op.gain, op.offset)
    if op.scale is not None:
        value = value * op.scale
    if residual is not None:
        value = value + residual
    if op.clamp:
        value = np.minimum(np.maximum(value, -_ONE), _ONE)
    return value


def _windows(values: npt.NDArray[Any], op: Operation) -> npt.NDArray[Any]:
    """Return a view (n, h, w, row, column, channel) of what each output sees."""
    view = sliding_window_view(values, op.kernel, axis=(1, 2))
    return view[:, :: op.stride, :: op.stride].transpose(0, 1, 2, 4, 5, 3)


def _pad(values: npt.NDArray[np.float32], op: Operation, constant: float) -> Floats:
    top, left, bottom, right = op.padding
    widths = ((0, 0), (top, bottom), (left, right), (0, 0))
    return np.pad(values, widths, constant_values=np.float32(constant))


def _binary_conv(op: Operation, bits: Bits) -> Floats:
    """Return the integer sums; float32 holds them exactly (at most 32766)."""
    values = np.where(bits, _ONE, -_ONE)
    windows = _windows(_pad(values, op, 1.0), op)
    n, height, width, *taps = windows.shape
    if op.depthwise:
        weight = signs(op, (op.out_channels, *op.kernel))
        return np.asarray(np.einsum("nhwrkc,crk->nhwc", windows, weight))
    weight = signs(op, (op.out_channels, int(np.prod(taps))))
    sums = windows.reshape(n * height * width, -1) @ weight.T
    return np.asarray(sums.reshape(n, height, width, op.out_channels), np.float32)


def _bit_pool(op: Operation, bits: Bits) -> Bits:
    mask = np.zeros(bits.shape[-1], np.bool_) if op.mask is None else op.mask
    return np.asarray(_windows(bits ^ mask, op).any(axis=(3, 4)) ^ mask)


def _float_operation(op: Operation, values: Floats) -> Floats:
    if op.kind is Kind.CONV:
        return _conv(op, values)
    if op.kind is Kind.MAXPOOL:
        return np.asarray(_windows(values, op).max(axis=(3, 4)))
    if op.kind is Kind.LAYERNORM:
        return _layer_norm(op, values)
    if op.kind is Kind.MEAN:
        return _mean(values)
    return _linear(op, values)


def _start(op: Operation, shape: tuple[int, ...]) -> Doubles:
    total = np.zeros((*shape, op.out_channels), np.float64)
    return total if op.bias is None else total + op.bias


def _conv(op: Operation, values: Floats) -> Floats:
    windows = _windows(_pad(values, op, 0.0).astype(np.float64), op)
    weight = present(op.weight).astype(np.float64)
    total = _start(op, windows.shape[:3])
    for tap in np.ndindex(windows.shape[3:]):
        total += windows[(..., *tap)][..., None] * weight[tap]
    return total.astype(np.float32)


def _lane_sum(values: Doubles) -> Doubles:
    """Sum the last axis in 16 lanes, then the lanes in order."""
    missing = -values.shape[-1] % _LANES
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])
    lanes = np.zeros((*values.shape[:-1], _LANES), np.float64)
    for begin in range(0, padded.shape[-1], _LANES):
        lanes += padded[..., begin : begin + _LANES]
    total = np.zeros(values.shape[:-1], np.float64)
    for lane in range(_LANES):
        total += lanes[..., lane]
    return total[..., None]


def _layer_norm(op: Operation, values: Floats) -> Floats:
    wide, channels = values.astype(np.float64), values.shape[-1]
    centred = wide - _lane_sum(wide) / channels
    variance = _lane_sum(centred * centred) / channels
    inverse = 1.0 / np.sqrt(variance + np.float64(op.epsilon))
    result = centred * inverse * present(op.gain) + present(op.offset)
    return np.asarray(result, np.float32)


def _mean(values: Floats) -> Floats:
    n, height, width, channels = values.shape
    total = np.zeros((n, 1, 1, channels), np.float32)
    for y, x in np.ndindex(height, width):
        total += values[:, y : y + 1, x : x + 1]
    return total / np.float32(height * width)


def _linear(op: Operation, values: Floats) -> Floats:
    """Return the linear layer of the features in (channel, row, column) order."""
    weight = present(op.weight).astype(np.float32)
    if op.weight_scale is not None:
        weight = weight * op.weight_scale[:, None]
    features = values.transpose(0, 3, 1, 2).reshape(len(values), -1).astype(np.float64)
    total = _start(op, (len(values), 1, 1))
    for index in range(features.shape[1]):
        total += features[:, index, None, None, None] * weight[:, index]
    return total.astype(np.float32)

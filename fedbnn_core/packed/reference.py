"""Run a packed network with numpy: the definition that every kernel must match.

Sums that decide about signs are taken in float64, in one fixed order, and rounded once;
the affine epilogue is a fused multiply-add. The C kernels do the same, so their results
are equal bit for bit.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from fedbnn_core.packed.graph import Graph, Kind, Operation, infer_shapes, present

__all__ = ["activation_bytes", "fma", "normalize", "preactivations", "run", "signs"]

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]

_LANES = 16
_ONE = np.float32(1)
_VALUES_AT_ONCE = 2**22
"""Of the largest activation: as many images as have no more run together."""
_BLOCK = 2**18
"""Values of which float64 copies are made at once."""


def normalize(graph: Graph, pixels: npt.NDArray[np.uint8]) -> Floats:
    """Return raw pixels (..., c) normalized as the network was trained."""
    return fma(pixels.astype(np.float32), graph.pixel_scale, graph.pixel_shift)


def run(graph: Graph, images: Floats) -> Floats:
    """Return logits (n, classes) of normalized images (n, h, w, c)."""
    logits = np.empty((len(images), len(graph.class_names)), np.float32)
    largest = max(int(np.prod(shape.output)) for shape in infer_shapes(graph))
    count = min(64, max(1, _VALUES_AT_ONCE // largest))
    for begin in range(0, len(images), count):
        *_, (_, _, result) = _execute(graph, images[begin : begin + count])
        logits[begin : begin + count] = result.reshape(-1, logits.shape[1])
    return logits


def activation_bytes(graph: Graph) -> int:
    """Return the memory that the slots of one image take."""
    sizes: dict[tuple[str, int], int] = {}
    for op, shape in zip(graph.operations, infer_shapes(graph), strict=True):
        values = int(np.prod(shape.output))
        for kind, slot, size in (("f", op.out_float, 4), ("b", op.out_bits, 1)):
            if slot is not None:
                sizes[kind, slot] = max(sizes.get((kind, slot), 0), size * values)
    return sum(sizes.values())


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
    return _in_blocks(lambda part: _fma(part, gain, offset), x)


def _in_blocks(function: Callable[[Floats], Floats], values: Floats) -> Floats:
    """Apply a function of positions (n, c) to blocks of (..., c): it copies a lot."""
    rows = values.reshape(-1, values.shape[-1])
    result = np.empty(rows.shape, np.float32)
    count = max(1, _BLOCK // values.shape[-1])
    for begin in range(0, len(rows), count):
        result[begin : begin + count] = function(rows[begin : begin + count])
    return result.reshape(values.shape)


def _fma(x: Floats, gain: Floats, offset: Floats) -> Floats:
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
    return np.where(bits, _ONE, -_ONE).reshape(shape)


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


def _positions(values: npt.NDArray[Any], op: Operation) -> tuple[int, int, int]:
    """Return n, height and width of what a convolution of (n, h, w, ...) yields."""
    top, left, bottom, right = op.padding
    height = (values.shape[1] + top + bottom - op.kernel[0]) // op.stride + 1
    width = (values.shape[2] + left + right - op.kernel[1]) // op.stride + 1
    return len(values), height, width


def _tap(
    values: npt.NDArray[Any], op: Operation, row: int, column: int, padding: float
) -> npt.NDArray[Any]:
    """Return what each output of a convolution sees at one place of its kernel.

    All places together would be an im2col, up to 225 times the input; even padding the
    input could multiply it by 29.
    """
    n, height, width = _positions(values, op)
    to_y, from_y = _inside(row - op.padding[0], op.stride, values.shape[1], height)
    to_x, from_x = _inside(column - op.padding[1], op.stride, values.shape[2], width)
    seen = np.full((n, height, width, *values.shape[3:]), padding, values.dtype)
    seen[:, to_y, to_x] = values[:, from_y, from_x]
    return seen


def _inside(first: int, stride: int, size: int, count: int) -> tuple[slice, slice]:
    """Return the outputs whose tap is no padding, and what these taps read.

    Output i of ``count`` reads input ``first`` + i * ``stride`` of ``size``.
    """
    begin = min(count, max(0, -(first // stride)))
    end = max(begin, min(count, (size - 1 - first) // stride + 1))
    start = first + begin * stride
    return slice(begin, end), slice(start, start + (end - begin) * stride, stride)


def _binary_conv(op: Operation, bits: Bits) -> Floats:
    """Return the integer sums; float32 holds them exactly (at most 32766)."""
    channels = 1 if op.depthwise else bits.shape[-1]
    weight = signs(op, (op.out_channels, *op.kernel, channels))
    values = np.where(bits, _ONE, -_ONE)
    sums = np.zeros((*_positions(values, op), op.out_channels), np.float32)
    for row, column in np.ndindex(op.kernel):
        seen = _tap(values, op, row, column, 1.0)
        of_tap = weight[:, row, column].T
        if op.depthwise:
            sums += seen * of_tap[0]
        else:
            sums += (seen.reshape(-1, channels) @ of_tap).reshape(sums.shape)
    return sums


def _bit_pool(op: Operation, bits: Bits) -> Bits:
    mask = np.zeros(bits.shape[-1], np.bool_) if op.mask is None else op.mask
    return np.asarray(_windows(bits ^ mask, op).any(axis=(3, 4)) ^ mask)


def _float_operation(op: Operation, values: Floats) -> Floats:
    if op.kind is Kind.CONV:
        return _conv(op, values)
    if op.kind is Kind.MAXPOOL:
        return np.asarray(_windows(values, op).max(axis=(3, 4)))
    if op.kind is Kind.LAYERNORM:
        return _in_blocks(lambda rows: _layer_norm(op, rows), values)
    if op.kind is Kind.MEAN:
        return _mean(values)
    return _linear(op, values)


def _start(op: Operation, shape: tuple[int, ...]) -> Doubles:
    total = np.zeros((*shape, op.out_channels), np.float64)
    return total if op.bias is None else total + op.bias


def _conv(op: Operation, values: Floats) -> Floats:
    weight = present(op.weight)
    total = _start(op, _positions(values, op))
    for row, column, channel in np.ndindex(weight.shape[:3]):
        seen = _tap(values[..., channel], op, row, column, 0.0)
        total += seen[..., None] * weight[row, column, channel].astype(np.float64)
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
    for row in range(height):
        # An accumulation adds one position after the other, a sum would not.
        line = np.concatenate([total, values[:, row : row + 1]], axis=2)
        total = np.add.accumulate(line, axis=2)[:, :, -1:]
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

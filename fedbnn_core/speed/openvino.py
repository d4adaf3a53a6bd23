"""A packed network in OpenVINO, whose binary convolution is compared with ours.

Signs are two-level quantizations and binary convolutions OpenVINO's own. What it cannot
do in bits runs in float32: convolutions by channel, and those whose input has a number
of channels that does not fill whole bytes.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbnn_core.packed.graph import Graph, Kind, Operation, infer_shapes, present
from fedbnn_core.packed.reference import signs
from fedbnn_core.speed.timing import Runner

__all__ = ["openvino_model", "openvino_runner"]

Images = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float32]

# A bit is v >= 0, OpenVINO's is v > threshold.
_BELOW_ZERO = -np.finfo(np.float32).tiny


@dataclass(frozen=True)
class _Bits:
    """Bits of every channel, as the comparison that yields them."""

    values: Any
    thresholds: Floats
    flips: npt.NDArray[np.bool_]
    """A bit is (value > threshold) ^ flip."""


def openvino_runner(graph: Graph, images: Images, threads: int) -> Runner:
    """Return a call that runs images (n, c, h, w) through the network.

    Raises ``ImportError`` without OpenVINO.
    """
    import openvino

    compiled = openvino.Core().compile_model(
        openvino_model(graph, len(images)),
        "CPU",
        {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
        },
    )
    request = compiled.create_infer_request()

    def run() -> object:
        return request.infer({0: images}, share_inputs=True)[0]

    return run


def openvino_model(graph: Graph, batch: int) -> Any:
    """Return an ``openvino.Model`` from normalized images (n, c, h, w) to logits."""
    import openvino
    from openvino import opset13

    height, width, channels = graph.input_shape
    image = opset13.parameter([batch, channels, height, width], openvino.Type.f32)
    floats: dict[int, Any] = {}
    bits: dict[int, _Bits] = {}
    value = image
    for op, shape in zip(graph.operations, infer_shapes(graph), strict=True):
        if op.kind is Kind.BITPOOL:
            bits[present(op.out_bits)] = _bit_pool(op, bits[present(op.input)])
            continue
        if op.kind is Kind.INPUT:
            value = image
        elif op.kind is Kind.BCONV:
            value = _binary_conv(op, bits[present(op.input)], shape.input[2])
        else:
            value = _float_operation(op, floats[present(op.input)])
        if op.thresholds is not None:
            # Sums are integers.
            thresholds = op.thresholds.astype(np.float32) - np.float32(0.5)
            bits[present(op.out_bits)] = _Bits(value, thresholds, present(op.flips))
            continue
        residual = None if op.residual is None else floats[op.residual]
        value = _finish(op, value, residual)
        if op.out_float is not None:
            floats[op.out_float] = value
        if op.out_bits is not None:
            zeros = np.zeros(op.out_channels, np.bool_)
            below = np.full(op.out_channels, _BELOW_ZERO, np.float32)
            # OpenVINO 2026.4 merges a residual and a sign into the convolution before
            # them, with wrong results; rounding down keeps them apart, and the sign.
            compared = value if residual is None else opset13.floor(value)
            bits[op.out_bits] = _Bits(compared, below, zeros)
    return openvino.Model([value], [image])


def _each_channel(values: npt.NDArray[Any]) -> Floats:
    return np.asarray(values, np.float32).reshape(1, -1, 1, 1)


def _finish(op: Operation, value: Any, residual: Any) -> Any:
    from openvino import opset13

    if op.kind is Kind.BCONV and op.bias is not None:
        value = opset13.add(value, _each_channel(op.bias))
    if op.gain is not None and op.offset is not None and op.kind is not Kind.LAYERNORM:
        value = opset13.multiply(value, _each_channel(op.gain))
        value = opset13.add(value, _each_channel(op.offset))
    if op.scale is not None:
        value = opset13.multiply(value, _each_channel(op.scale))
    if residual is not None:
        value = opset13.add(value, residual)
    return opset13.clamp(value, -1.0, 1.0) if op.clamp else value


def _bit_values(bits: _Bits) -> Any:
    """Return the bits in the form that binary convolutions take."""
    from openvino import opset13

    at = _each_channel(bits.thresholds)
    low, high = _each_channel(bits.flips), _each_channel(~bits.flips)
    return opset13.fake_quantize(bits.values, at, at, low, high, 2)


def _float_signs(bits: _Bits) -> Any:
    from openvino import opset13

    above = opset13.greater(bits.values, _each_channel(bits.thresholds))
    sign = _each_channel(np.where(bits.flips, -1.0, 1.0))
    return opset13.select(above, sign, -sign)


def _binary_conv(op: Operation, bits: _Bits, channels: int) -> Any:
    import openvino
    from openvino import opset13

    weight = signs(op, (op.out_channels, *op.kernel, 1 if op.depthwise else channels))
    weight = np.ascontiguousarray(weight.transpose(0, 3, 1, 2))
    top, left, bottom, right = op.padding
    strides = [op.stride, op.stride]
    if not op.depthwise and channels % 8 == 0:
        # Memory of its own: a constant does not keep a foreign array alive.
        tensor = openvino.Tensor(openvino.Type.u1, openvino.Shape(weight.shape))
        tensor.data[:] = np.packbits(weight.reshape(-1) > 0, bitorder="little")
        return opset13.binary_convolution(
            _bit_values(bits),
            openvino.op.Constant(tensor),
            strides,
            [top, left],
            [bottom, right],
            [1, 1],
            "xnor-popcount",
            1.0,
        )
    pads = np.array([0, 0, top, left]), np.array([0, 0, bottom, right])
    padded = opset13.pad(_float_signs(bits), *pads, "constant", np.float32(1))
    nothing = [0, 0], [0, 0], [1, 1]
    if op.depthwise:
        groups = weight.reshape(op.out_channels, 1, 1, *op.kernel)
        return opset13.group_convolution(padded, groups, strides, *nothing)
    return opset13.convolution(padded, weight, strides, *nothing)


def _max_pool(op: Operation, values: Any) -> Any:
    from openvino import opset1

    strides = [op.stride, op.stride]
    return opset1.max_pool(values, strides, [0, 0], [0, 0], list(op.kernel))


def _bit_pool(op: Operation, bits: _Bits) -> _Bits:
    """Pool what is compared: flipped channels take the minimum, masked ones turn."""
    from openvino import opset13

    mask = np.zeros_like(bits.flips) if op.mask is None else op.mask
    turned = bits.flips ^ mask
    if not turned.any():
        return replace(bits, values=_max_pool(op, bits.values))
    sign = _each_channel(np.where(turned, -1.0, 1.0))
    pooled = _max_pool(op, opset13.multiply(bits.values, sign))
    return replace(bits, values=opset13.multiply(pooled, sign))


def _float_operation(op: Operation, values: Any) -> Any:
    from openvino import opset13

    if op.kind is Kind.MAXPOOL:
        return _max_pool(op, values)
    if op.kind is Kind.MEAN:
        return opset13.reduce_mean(values, np.array([2, 3]), keep_dims=True)
    if op.kind is Kind.LAYERNORM:
        axes = np.array([1])
        normal = opset13.mvn(values, axes, True, op.epsilon, "inside_sqrt")
        scaled = opset13.multiply(normal, _each_channel(present(op.gain)))
        return opset13.add(scaled, _each_channel(present(op.offset)))
    weight = present(op.weight).astype(np.float32)
    if op.kind is Kind.CONV:
        top, left, bottom, right = op.padding
        kernel = np.ascontiguousarray(weight.transpose(3, 2, 0, 1))
        strides = [op.stride, op.stride]
        value = opset13.convolution(
            values, kernel, strides, [top, left], [bottom, right], [1, 1]
        )
        return value if op.bias is None else opset13.add(value, _each_channel(op.bias))
    if op.weight_scale is not None:
        weight = weight * op.weight_scale[:, None]
    flat = opset13.reshape(values, np.array([0, -1]), True)
    value = opset13.matmul(flat, weight, False, True)
    return value if op.bias is None else opset13.add(value, op.bias)

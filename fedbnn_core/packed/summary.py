"""Count what is in a packed network."""

from typing import Any

from fedbnn_core.packed.graph import (
    Graph,
    Kind,
    Operation,
    OperationShape,
    infer_shapes,
)

__all__ = ["macs", "summarize"]

_RECORD_BYTES = 16


def macs(graph: Graph) -> tuple[int, int]:
    """Return the multiply-accumulates of one image: (binary, float)."""
    counts = {True: 0, False: 0}
    for op, shape in zip(graph.operations, infer_shapes(graph), strict=True):
        if op.kind in (Kind.CONV, Kind.BCONV, Kind.LINEAR):
            height, width, channels = shape.output
            binary = op.kind is Kind.BCONV
            counts[binary] += height * width * channels * shape.fan_in
    return counts[True], counts[False]


def summarize(graph: Graph, data: bytes) -> dict[str, Any]:
    """Return the figures that `fedbnn info` shows, ready for JSON."""
    layers = [
        _layer(op, shape)
        for op, shape in zip(graph.operations, infer_shapes(graph), strict=True)
    ]
    height, width, channels = graph.input_shape
    binary_macs, float_macs = macs(graph)
    return {
        "architecture": graph.architecture,
        "input_shape": [channels, height, width],
        "class_names": graph.class_names,
        "mean": graph.mean,
        "std": graph.std,
        "binary_weights": sum(layer["binary_weights"] for layer in layers),
        "other_numbers": sum(layer["other_numbers"] for layer in layers),
        "binary_macs": binary_macs,
        "float_macs": float_macs,
        "file_bytes": len(data),
        "sha256": data[16:48].hex(),
        "layers": layers,
    }


def _layer(op: Operation, shape: OperationShape) -> dict[str, Any]:
    binary = shape.fan_in * op.out_channels if op.kind is Kind.BCONV else 0
    numbers = [
        array
        for array in (
            op.weight,
            op.weight_scale,
            op.bias,
            op.thresholds,
            op.gain,
            op.offset,
            op.scale,
        )
        if array is not None
    ]
    packed = [array for array in (op.flips, op.mask) if array is not None]
    size = _RECORD_BYTES + (binary + 7) // 8
    size += sum(array.nbytes for array in numbers)
    size += sum((array.size + 7) // 8 for array in packed)
    if op.kind is Kind.LAYERNORM:
        size += 4
    return {
        "operation": _name(op),
        "output": list(shape.output),
        "kernel": _kernel(op),
        "result": _result(op),
        "binary_weights": binary,
        "other_numbers": sum(array.size for array in numbers),
        "bytes": size,
    }


def _name(op: Operation) -> str:
    names = {
        Kind.INPUT: "input",
        Kind.CONV: "float conv",
        Kind.BCONV: "binary depthwise conv" if op.depthwise else "binary conv",
        Kind.BITPOOL: "max-pool of bits",
        Kind.MAXPOOL: "max-pool",
        Kind.LAYERNORM: "layer norm",
        Kind.MEAN: "mean",
        Kind.LINEAR: "linear, int8" if op.weight_scale is not None else "linear",
    }
    return names[op.kind]


def _kernel(op: Operation) -> str:
    if op.kernel == (0, 0):
        return ""
    return f"{op.kernel[0]}x{op.kernel[1]}" + (
        f" / {op.stride}" if op.stride > 1 else ""
    )


def _result(op: Operation) -> str:
    parts = []
    if op.thresholds is not None:
        parts.append("threshold")
    if op.gain is not None and op.kind is not Kind.LAYERNORM:
        parts.append("BN")
    if op.residual is not None:
        parts.append("+ residual")
    if op.clamp:
        parts.append("clamp")
    kept = [
        name
        for name, slot in (("floats", op.out_float), ("bits", op.out_bits))
        if slot is not None
    ]
    return ", ".join([*parts, " and ".join(kept)])

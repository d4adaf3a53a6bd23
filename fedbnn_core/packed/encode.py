"""Write `.fbnn` files (FORMAT.md) with numpy alone."""

import hashlib
import struct

import numpy as np
import numpy.typing as npt

from fedbnn_core.errors import FormatError
from fedbnn_core.packed.decode import decode
from fedbnn_core.packed.format import (
    AFFINE,
    BIAS,
    CLAMP,
    DEPTHWISE,
    HEADER,
    INT8,
    MAGIC,
    MASK,
    NO_SLOT,
    PREFIX,
    RECORD,
    SCALE,
    THRESHOLD,
    VERSION,
    stored_name,
)
from fedbnn_core.packed.graph import REFUSAL, Graph, Kind, Operation, infer_shapes

__all__ = ["encode", "seal"]


def encode(graph: Graph) -> bytes:
    """Return the file's bytes; what a reader would refuse is refused here already."""
    try:
        data = _encode(graph)
        decode(data)
    except (FormatError, struct.error) as error:
        problem = str(error).removeprefix(REFUSAL).partition(";")[0]
        raise FormatError(
            f"the network cannot be packed: {problem}; if its training diverged, train "
            "it again with a smaller lr"
        ) from error
    return data


def _encode(graph: Graph) -> bytes:
    infer_shapes(graph)
    height, width, channels = graph.input_shape
    name = stored_name(graph.architecture).encode()
    body = [
        HEADER.pack(
            height,
            width,
            channels,
            len(graph.class_names),
            len(graph.operations),
            graph.slots,
            len(name),
        ),
        _floats(graph.pixel_scale),
        _floats(graph.pixel_shift),
        name,
    ]
    for class_name in graph.class_names:
        text = stored_name(class_name).encode()
        body += [bytes([len(text)]), text]
    body += [_encode_operation(op) for op in graph.operations]
    return seal(b"".join(body))


def seal(body: bytes) -> bytes:
    """Return the body behind its prefix: magic, version, size and SHA-256."""
    size = PREFIX.size + len(body)
    prefix = PREFIX.pack(MAGIC, VERSION, 0, size, bytes(32))[:16]
    return prefix + hashlib.sha256(prefix + body).digest() + body


def _slot(slot: int | None) -> int:
    return NO_SLOT if slot is None else slot


def _encode_operation(op: Operation) -> bytes:
    norm = op.kind is Kind.LAYERNORM
    flags = (
        AFFINE * (op.gain is not None and not norm)
        | SCALE * (op.scale is not None)
        | CLAMP * op.clamp
        | THRESHOLD * (op.thresholds is not None)
        | BIAS * (op.bias is not None)
        | DEPTHWISE * op.depthwise
        | INT8 * (op.weight_scale is not None)
        | MASK * (op.mask is not None)
    )
    parts = [
        RECORD.pack(
            op.kind,
            flags,
            _slot(op.input),
            _slot(op.residual),
            _slot(op.out_float),
            _slot(op.out_bits),
            *op.kernel,
            op.stride,
            *op.padding,
            0,
            op.out_channels,
        )
    ]
    if op.bits is not None:
        parts.append(op.bits.tobytes())
    if op.weight is not None:
        parts.append(op.weight.astype(op.weight.dtype.newbyteorder("<")).tobytes())
    if norm:
        parts.append(struct.pack("<f", op.epsilon))
        parts += [_floats(op.gain), _floats(op.offset)]
    parts += [_floats(op.weight_scale), _floats(op.bias)]
    if op.thresholds is not None and op.flips is not None:
        parts += [op.thresholds.astype("<i2").tobytes(), _pack(op.flips)]
    if not norm:
        parts += [_floats(op.gain), _floats(op.offset)]
    parts.append(_floats(op.scale))
    if op.mask is not None:
        parts.append(_pack(op.mask))
    return b"".join(parts)


def _floats(values: npt.NDArray[np.float32] | None) -> bytes:
    return b"" if values is None else values.astype("<f4").tobytes()


def _pack(bits: npt.NDArray[np.bool_]) -> bytes:
    return np.packbits(bits, bitorder="little").tobytes()

"""Write and read `.fbnn` files (FORMAT.md) with numpy alone."""

import hashlib
import struct
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedbnn_core.errors import FormatError
from fedbnn_core.packed.graph import (
    MAX_CHANNELS,
    MAX_OPERATIONS,
    MAX_SIDE,
    MAX_SLOTS,
    REFUSAL,
    Graph,
    Kind,
    Operation,
    OperationShape,
    SlotShapes,
    connect,
    infer_shapes,
    require,
)

__all__ = ["MAGIC", "VERSION", "decode", "encode", "read_file", "seal", "stored_name"]

MAGIC = b"\x89FBNN\r\n\x1a"
VERSION = 1
MAX_FILE_BYTES = 2**30

_NO_SLOT = 255
_PREFIX = struct.Struct("<8sHHI32s")
_HEADER = struct.Struct("<HHHHHBB")
_RECORD = struct.Struct("<14BH")
_AFFINE, _SCALE, _CLAMP, _THRESHOLD, _BIAS, _DEPTHWISE, _INT8, _MASK = (
    1 << bit for bit in range(8)
)
_POST = _AFFINE | _SCALE | _CLAMP
_ALLOWED_FLAGS = {
    Kind.INPUT: 0,
    Kind.CONV: _POST | _BIAS,
    Kind.BCONV: _POST | _THRESHOLD | _BIAS | _DEPTHWISE,
    Kind.BITPOOL: _MASK,
    Kind.MAXPOOL: _POST,
    Kind.LAYERNORM: 0,
    Kind.MEAN: _POST,
    Kind.LINEAR: _BIAS | _INT8,
}


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
        _HEADER.pack(
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
    size = _PREFIX.size + len(body)
    prefix = _PREFIX.pack(MAGIC, VERSION, 0, size, bytes(32))[:16]
    return prefix + hashlib.sha256(prefix + body).digest() + body


def stored_name(name: str) -> str:
    """Return a name as a file holds it: no control characters, 255 bytes of UTF-8."""
    plain = "".join("?" if _is_control(c) else c for c in name)
    # A folder's name may have bytes that are no text; Python has surrogates for them.
    return plain.encode(errors="replace")[:255].decode(errors="ignore")


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc"


def _slot(slot: int | None) -> int:
    return _NO_SLOT if slot is None else slot


def _encode_operation(op: Operation) -> bytes:
    norm = op.kind is Kind.LAYERNORM
    flags = (
        _AFFINE * (op.gain is not None and not norm)
        | _SCALE * (op.scale is not None)
        | _CLAMP * op.clamp
        | _THRESHOLD * (op.thresholds is not None)
        | _BIAS * (op.bias is not None)
        | _DEPTHWISE * op.depthwise
        | _INT8 * (op.weight_scale is not None)
        | _MASK * (op.mask is not None)
    )
    parts = [
        _RECORD.pack(
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


def read_file(path: str | Path) -> bytes:
    """Return the bytes of an `.fbnn` file, or say why it cannot be one."""
    path = Path(path)
    try:
        size = path.stat().st_size
        require(size <= MAX_FILE_BYTES, f"{path} has {size} bytes")
        return path.read_bytes()
    except OSError as error:
        raise FormatError(
            f"cannot read the model {path}: {error.strerror}; "
            "write one with `fedbnn export RUN_DIR -o model.fbnn`"
        ) from error


@dataclass
class _Cursor:
    data: memoryview
    at: int = 0

    def take(self, size: int) -> memoryview:
        require(size <= len(self.data) - self.at, "it ends too early")
        self.at += size
        return self.data[self.at - size : self.at]

    def array(self, count: int, kind: str) -> npt.NDArray[np.generic]:
        dtype = np.dtype(kind)
        raw = np.frombuffer(self.take(count * dtype.itemsize), dtype)
        return raw.astype(dtype.newbyteorder("="), copy=False)

    def floats(self, count: int) -> npt.NDArray[np.float32]:
        values = self.array(count, "<f4").astype(np.float32, copy=False)
        require(bool(np.isfinite(values).all()), "a number that is not finite")
        return values

    def mask(self, count: int) -> npt.NDArray[np.bool_]:
        packed = np.frombuffer(self.take((count + 7) // 8), np.uint8)
        return np.unpackbits(packed, count=count, bitorder="little").astype(np.bool_)

    def text(self, size: int) -> str:
        """Return a name; one with control characters could steer a terminal."""
        try:
            text = bytes(self.take(size)).decode()
        except UnicodeDecodeError:
            text = "\0"
        require(not any(map(_is_control, text)), "a name that is no plain UTF-8 text")
        return text


def decode(data: bytes) -> Graph:
    """Return the graph of a file's bytes; every inconsistency is a FormatError."""
    _check_prefix(data)
    file = _Cursor(memoryview(data), _PREFIX.size)
    height, width, channels, classes, operations, slots, name_size = _HEADER.unpack(
        file.take(_HEADER.size)
    )
    require(
        1 <= height <= MAX_SIDE
        and 1 <= width <= MAX_SIDE
        and 1 <= channels <= MAX_CHANNELS
        and classes >= 1
        and 1 <= operations <= MAX_OPERATIONS
        and 1 <= slots <= MAX_SLOTS,
        "a header field out of range",
    )
    scale, shift = file.floats(channels), file.floats(channels)
    require(bool((scale > 0).all()), "a pixel scale that is not positive")
    name = file.text(name_size)
    class_names = [file.text(file.take(1)[0]) for _ in range(classes)]
    graph = Graph(name, (height, width, channels), scale, shift, class_names)
    shapes = SlotShapes(slots)
    for _ in range(operations):
        graph.operations.append(_decode_operation(file, shapes, graph.input_shape))
    require(file.at == len(data), "bytes after its end")
    infer_shapes(graph)
    return graph


def _check_prefix(data: bytes) -> None:
    require(data[: len(MAGIC)] == MAGIC, "it does not start with the FBNN magic")
    require(len(data) >= _PREFIX.size, "it ends too early")
    _, version, reserved, size, digest = _PREFIX.unpack_from(data)
    if version != VERSION or reserved:
        raise FormatError(
            f"expected .fbnn version {VERSION}, got {version}; install the FedBNN "
            "release that wrote the file, or export the model again"
        )
    require(size == len(data), f"{size} bytes expected, {len(data)} found")
    actual = hashlib.sha256(data[:16] + data[_PREFIX.size :]).digest()
    require(actual == digest, "its SHA-256 does not match: it was damaged")


def _decode_operation(
    file: _Cursor, shapes: SlotShapes, image: tuple[int, int, int]
) -> Operation:
    (
        kind_number,
        flags,
        source,
        residual,
        out_float,
        out_bits,
        kernel_h,
        kernel_w,
        stride,
        top,
        left,
        bottom,
        right,
        reserved,
        channels,
    ) = _RECORD.unpack(file.take(_RECORD.size))
    require(kind_number in Kind._value2member_map_, "an unknown operation")
    kind = Kind(kind_number)
    require(not flags & ~_ALLOWED_FLAGS[kind] and reserved == 0, "an unknown flag")
    if flags & _THRESHOLD:
        require(not flags & (_POST | _BIAS), "a threshold and an epilogue")

    def slot(number: int) -> int | None:
        require(number == _NO_SLOT or number < shapes.slots, "an unknown slot")
        return None if number == _NO_SLOT else number

    op = Operation(
        kind,
        channels,
        input=slot(source),
        residual=slot(residual),
        out_float=slot(out_float),
        out_bits=slot(out_bits),
        kernel=(kernel_h, kernel_w),
        stride=stride,
        padding=(top, left, bottom, right),
        depthwise=bool(flags & _DEPTHWISE),
        clamp=bool(flags & _CLAMP),
    )
    if flags & _THRESHOLD:
        require(op.out_float is None and op.residual is None, "bits stored as floats")
    shape = connect(op, shapes, image)
    _decode_weights(file, op, shape, flags)
    if flags & _BIAS:
        op.bias = file.floats(channels)
    if flags & _THRESHOLD:
        op.thresholds = file.array(channels, "<i2").astype(np.int16)
        in_range = np.abs(op.thresholds.astype(np.int32) - 0.5) <= shape.fan_in + 0.5
        require(bool(in_range.all()), "a threshold that no sum can meet")
        op.flips = file.mask(channels)
    if flags & _AFFINE:
        op.gain, op.offset = file.floats(channels), file.floats(channels)
    if flags & _SCALE:
        op.scale = file.floats(channels)
    if flags & _MASK:
        op.mask = file.mask(channels)
    return op


def _decode_weights(
    file: _Cursor, op: Operation, shape: OperationShape, flags: int
) -> None:
    fan_in, channels = shape.fan_in, op.out_channels
    if op.kind is Kind.CONV:
        weight = file.floats(fan_in * channels)
        op.weight = weight.reshape(*op.kernel, shape.input[2], channels)
    elif op.kind is Kind.BCONV:
        size = (fan_in * channels + 7) // 8
        op.bits = np.frombuffer(file.take(size), np.uint8)
    elif op.kind is Kind.LAYERNORM:
        op.epsilon = float(file.floats(1)[0])
        require(op.epsilon >= 0, "a negative epsilon")
        op.gain, op.offset = file.floats(channels), file.floats(channels)
    elif op.kind is Kind.LINEAR and flags & _INT8:
        integers = file.array(fan_in * channels, "<i1").astype(np.int8)
        op.weight = integers.reshape(channels, fan_in)
        op.weight_scale = file.floats(channels)
        with np.errstate(over="ignore"):
            scaled = op.weight_scale[:, None] * integers.reshape(channels, fan_in)
        require(bool(np.isfinite(scaled).all()), "an int8 scale that is too large")
    elif op.kind is Kind.LINEAR:
        op.weight = file.floats(fan_in * channels).reshape(channels, fan_in)

"""Read `.fbnn` files (FORMAT.md) with numpy alone."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedbnn_core.errors import FormatError
from fedbnn_core.packed.format import (
    AFFINE,
    ALLOWED_FLAGS,
    BIAS,
    CLAMP,
    DEPTHWISE,
    HEADER,
    INT8,
    MAGIC,
    MASK,
    MAX_FILE_BYTES,
    NO_SLOT,
    POST,
    PREFIX,
    RECORD,
    SCALE,
    THRESHOLD,
    VERSION,
    is_control,
)
from fedbnn_core.packed.graph import (
    MAX_CHANNELS,
    MAX_OPERATIONS,
    MAX_SIDE,
    MAX_SLOTS,
    Graph,
    Kind,
    Operation,
    OperationShape,
    SlotShapes,
    connect,
    infer_shapes,
    require,
)

__all__ = ["decode", "read_file"]


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
        require(not any(map(is_control, text)), "a name that is no plain UTF-8 text")
        return text


def decode(data: bytes) -> Graph:
    """Return the graph of a file's bytes; every inconsistency is a FormatError."""
    _check_prefix(data)
    file = _Cursor(memoryview(data), PREFIX.size)
    height, width, channels, classes, operations, slots, name_size = HEADER.unpack(
        file.take(HEADER.size)
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
    require(len(data) >= PREFIX.size, "it ends too early")
    _, version, reserved, size, digest = PREFIX.unpack_from(data)
    if version != VERSION or reserved:
        raise FormatError(
            f"expected .fbnn version {VERSION}, got {version}; install the FedBNN "
            "release that wrote the file, or export the model again"
        )
    require(size == len(data), f"{size} bytes expected, {len(data)} found")
    actual = hashlib.sha256(data[:16] + data[PREFIX.size :]).digest()
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
    ) = RECORD.unpack(file.take(RECORD.size))
    require(kind_number in Kind._value2member_map_, "an unknown operation")
    kind = Kind(kind_number)
    require(not flags & ~ALLOWED_FLAGS[kind] and reserved == 0, "an unknown flag")
    if flags & THRESHOLD:
        require(not flags & (POST | BIAS), "a threshold and an epilogue")

    def slot(number: int) -> int | None:
        require(number == NO_SLOT or number < shapes.slots, "an unknown slot")
        return None if number == NO_SLOT else number

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
        depthwise=bool(flags & DEPTHWISE),
        clamp=bool(flags & CLAMP),
    )
    if flags & THRESHOLD:
        require(op.out_float is None and op.residual is None, "bits stored as floats")
    shape = connect(op, shapes, image)
    _decode_weights(file, op, shape, flags)
    if flags & BIAS:
        op.bias = file.floats(channels)
    if flags & THRESHOLD:
        op.thresholds = file.array(channels, "<i2").astype(np.int16)
        in_range = np.abs(op.thresholds.astype(np.int32) - 0.5) <= shape.fan_in + 0.5
        require(bool(in_range.all()), "a threshold that no sum can meet")
        op.flips = file.mask(channels)
    if flags & AFFINE:
        op.gain, op.offset = file.floats(channels), file.floats(channels)
    if flags & SCALE:
        op.scale = file.floats(channels)
    if flags & MASK:
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
    elif op.kind is Kind.LINEAR and flags & INT8:
        integers = file.array(fan_in * channels, "<i1").astype(np.int8)
        op.weight = integers.reshape(channels, fan_in)
        op.weight_scale = file.floats(channels)
        with np.errstate(over="ignore"):
            scaled = op.weight_scale[:, None] * integers.reshape(channels, fan_in)
        require(bool(np.isfinite(scaled).all()), "an int8 scale that is too large")
    elif op.kind is Kind.LINEAR:
        op.weight = file.floats(fan_in * channels).reshape(channels, fan_in)

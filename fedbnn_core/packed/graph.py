"""The operations of a packed network and the shapes that flow between them."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedbnn_core.errors import FormatError

__all__ = [
    "MAX_ACTIVATION_BYTES",
    "MAX_CHANNELS",
    "MAX_FAN_IN",
    "MAX_KERNEL",
    "MAX_MACS",
    "MAX_OPERATIONS",
    "MAX_SIDE",
    "MAX_SLOTS",
    "MAX_STRIDE",
    "MAX_VALUES",
    "REFUSAL",
    "Graph",
    "Kind",
    "Operation",
    "OperationShape",
    "Shape",
    "SlotShapes",
    "connect",
    "infer_shapes",
    "present",
    "require",
]

MAX_SIDE = 4096
MAX_CHANNELS = 16384
MAX_KERNEL = 15
MAX_STRIDE = 8
MAX_FAN_IN = 32766
MAX_OPERATIONS = 1024
MAX_SLOTS = 16
MAX_VALUES = 2**24
MAX_MACS = 2**40
MAX_ACTIVATION_BYTES = 2**28
"""Of all slots together, for one image."""
REFUSAL = "not a valid .fbnn file: "

_T = TypeVar("_T")
Floats = npt.NDArray[np.float32]
Shape = tuple[int, int, int]
"""Height, width, channels."""


class Kind(IntEnum):
    """What an operation computes; the numbers are those of the file."""

    INPUT = 1
    CONV = 2
    BCONV = 3
    BITPOOL = 4
    MAXPOOL = 5
    LAYERNORM = 6
    MEAN = 7
    LINEAR = 8


BIT_READERS = (Kind.BCONV, Kind.BITPOOL)
WINDOWED = (Kind.CONV, Kind.BCONV, Kind.BITPOOL, Kind.MAXPOOL)
WITHOUT_EPILOGUE = (Kind.INPUT, Kind.BITPOOL, Kind.LAYERNORM, Kind.LINEAR)


@dataclass
class Operation:
    """One step: read a slot, compute, finish, write a float slot, a bit slot or both.

    The raw value v of every kind but BITPOOL and a BCONV with thresholds is finished
    by, each where present: v = fma(v, gain, offset), v *= scale, v += residual,
    v = clamp(v, -1, 1). A bit is v >= 0.
    """

    kind: Kind
    out_channels: int
    input: int | None = None
    residual: int | None = None
    out_float: int | None = None
    out_bits: int | None = None
    kernel: tuple[int, int] = (0, 0)
    stride: int = 0
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Top, left, bottom, right: zeros for CONV, +1 for BCONV."""
    depthwise: bool = False
    clamp: bool = False
    bits: npt.NDArray[np.uint8] | None = None
    """BCONV: signs (1 is +1) of [out][row][column][in], packed, lowest bit first."""
    weight: npt.NDArray[Any] | None = None
    """CONV: [row][column][in][out]. LINEAR: [out][in], float32 or int8."""
    weight_scale: Floats | None = None
    """LINEAR with int8 weights: one factor per output."""
    bias: Floats | None = None
    thresholds: npt.NDArray[np.int16] | None = None
    """BCONV: bit = (sum >= threshold) ^ flip."""
    flips: npt.NDArray[np.bool_] | None = None
    gain: Floats | None = None
    """Of the epilogue, or LAYERNORM's gamma."""
    offset: Floats | None = None
    """Of the epilogue, or LAYERNORM's beta."""
    scale: Floats | None = None
    mask: npt.NDArray[np.bool_] | None = None
    """BITPOOL: channels that take the minimum instead of the maximum."""
    epsilon: float = 0.0

    @property
    def reads_bits(self) -> bool:
        """Say whether the input slot is a bit slot."""
        return self.kind in BIT_READERS


@dataclass
class Graph:
    """A whole packed network."""

    architecture: str
    input_shape: Shape
    pixel_scale: Floats
    pixel_shift: Floats
    """A pixel is normalized to fma(pixel, scale, shift), one pair per channel."""
    class_names: list[str]
    operations: list[Operation] = field(default_factory=list)

    @property
    def mean(self) -> list[float]:
        """Return the mean of pixel / 255 that normalization subtracts."""
        return [float(m) for m in -self.pixel_shift / self.pixel_scale / 255]

    @property
    def std(self) -> list[float]:
        """Return the deviation of pixel / 255 that normalization divides by."""
        return [float(s) for s in 1 / (255 * self.pixel_scale.astype(np.float64))]

    @property
    def slots(self) -> int:
        """Return how many slots of each type the operations use."""
        used = [
            slot
            for op in self.operations
            for slot in (op.input, op.residual, op.out_float, op.out_bits)
            if slot is not None
        ]
        return max(used, default=0) + 1


@dataclass(frozen=True)
class OperationShape:
    """What an operation reads and writes."""

    input: Shape
    output: Shape
    fan_in: int
    """Inputs per output value; 0 where nothing is multiplied."""


@dataclass
class SlotShapes:
    """The shapes that the slots hold while operations are walked in order."""

    slots: int
    floats: dict[int, Shape] = field(default_factory=dict)
    bits: dict[int, Shape] = field(default_factory=dict)


def require(condition: bool, problem: str) -> None:
    """Raise the reader's error unless the condition holds."""
    if not condition:
        raise FormatError(f"{REFUSAL}{problem}; export the model again")


def present(value: _T | None) -> _T:
    """Return a field that its operation cannot do without."""
    if value is None:
        raise FormatError("an operation lacks one of its parts; export the model again")
    return value


def infer_shapes(graph: Graph) -> list[OperationShape]:
    """Check how the operations are connected and return their shapes."""
    slots = SlotShapes(graph.slots)
    require(slots.slots <= MAX_SLOTS, f"more than {MAX_SLOTS} slots")
    shapes = [connect(op, slots, graph.input_shape) for op in graph.operations]
    macs = sum(s.output[0] * s.output[1] * s.output[2] * (s.fan_in + 1) for s in shapes)
    require(macs <= MAX_MACS, "more work than the format allows")
    require(bool(shapes), "no operations")
    require(
        graph.operations[-1].out_float is not None
        and shapes[-1].output == (1, 1, len(graph.class_names)),
        "the last operation does not yield one value per class",
    )
    return shapes


def connect(op: Operation, slots: SlotShapes, image: Shape) -> OperationShape:
    """Check one operation against the slots it reads and note what it writes."""
    source = _source(op, slots, image)
    shape = _shape(op, source)
    outputs = [op.out_float, op.out_bits]
    require(any(slot is not None for slot in outputs), "an operation without output")
    finished = op.thresholds is None and op.kind is not Kind.BITPOOL
    require(finished or op.out_float is None, "bits cannot be stored as floats")
    if op.residual is not None:
        require(
            finished
            and op.kind not in WITHOUT_EPILOGUE
            and slots.floats.get(op.residual) == shape.output,
            "a residual of another shape",
        )
    for slot, kept, same_type in (
        (op.out_float, slots.floats, not op.reads_bits),
        (op.out_bits, slots.bits, op.reads_bits),
    ):
        if slot is not None:
            require(slot < slots.slots, "an unknown slot")
            require(not (same_type and slot == op.input), "an output over its input")
            kept[slot] = shape.output
    return shape


def _source(op: Operation, slots: SlotShapes, image: Shape) -> Shape:
    if op.kind is Kind.INPUT:
        require(op.input is None, "an image read from a slot")
        return image
    held = slots.bits if op.reads_bits else slots.floats
    require(op.input in held, "a slot read before it is written")
    return held[present(op.input)]


def _shape(op: Operation, source: Shape) -> OperationShape:
    height, width, channels = source
    fan_in = 0
    if op.kind in WINDOWED:
        require(
            all(1 <= k <= MAX_KERNEL for k in op.kernel)
            and 1 <= op.stride <= MAX_STRIDE,
            "a kernel or stride out of range",
        )
        top, left, bottom, right = op.padding
        height = _window(height, top, bottom, op.kernel[0], op.stride)
        width = _window(width, left, right, op.kernel[1], op.stride)
        fan_in = op.kernel[0] * op.kernel[1] * (1 if op.depthwise else channels)
    else:
        require(op.kernel == (0, 0) and op.stride == 0, "a kernel that is not used")
    if op.kind not in (Kind.CONV, Kind.BCONV):
        require(not any(op.padding), "padding that is not used")
    if op.kind in (Kind.MEAN, Kind.LINEAR):
        fan_in = height * width * channels if op.kind is Kind.LINEAR else 0
        height = width = 1
    require(1 <= op.out_channels <= MAX_CHANNELS, "channels out of range")
    if op.kind not in (Kind.CONV, Kind.LINEAR) and (
        op.kind is not Kind.BCONV or op.depthwise
    ):
        require(op.out_channels == channels, "channels that change by themselves")
    require(op.kind is not Kind.BCONV or fan_in <= MAX_FAN_IN, "a filter too large")
    require(
        height * width * op.out_channels <= MAX_VALUES and fan_in <= MAX_VALUES,
        "an activation larger than the format allows",
    )
    return OperationShape(source, (height, width, op.out_channels), fan_in)


def _window(size: int, before: int, after: int, kernel: int, stride: int) -> int:
    require(before < kernel and after < kernel, "more padding than kernel")
    require(size + before + after >= kernel, "a kernel larger than its input")
    return (size + before + after - kernel) // stride + 1

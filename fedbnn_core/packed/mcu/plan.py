"""Lay a packed network out for a chip: its layers, and where each buffer lies in RAM.

A buffer lives from the step that writes it to the last step that reads it; buffers that
are never alive together share memory. A convolution whose only reader is the pooling
layer behind it hands over row by row, so that only the rows under the pooling window
exist. The image is read where the caller has it.
"""

from dataclasses import dataclass

from fedbnn_core.errors import FedBNNError
from fedbnn_core.packed.graph import (
    Graph,
    Kind,
    Operation,
    OperationShape,
    Shape,
    infer_shapes,
    present,
)

__all__ = ["Buffer", "Layer", "Plan", "plan_network"]

_ALIGNMENT = 4
_CONVOLUTIONS = (Kind.CONV, Kind.BCONV)
_POOLING = (Kind.BITPOOL, Kind.MAXPOOL)
_SUPPORTED = (Kind.INPUT, *_CONVOLUTIONS, *_POOLING, Kind.MEAN, Kind.LINEAR)


@dataclass(eq=False)
class Buffer:
    """A piece of the arena that is in use from one step to another."""

    name: str
    size: int
    first: int
    last: int
    offset: int = 0


@dataclass
class Layer:
    """An operation as the chip runs it."""

    op: Operation
    input: Shape
    output: Shape
    fan_in: int
    in_rows: int
    out_rows: int
    """Rows of the buffers; row y is at y modulo that."""
    reads_image: bool = False
    streams: bool = False
    """The next layer takes each row as soon as it is there."""
    source: Buffer | None = None
    residual: Buffer | None = None
    out_float: Buffer | None = None
    out_bits: Buffer | None = None
    scratch: Buffer | None = None


@dataclass
class Plan:
    """A network's layers and its arena."""

    layers: list[Layer]
    buffers: list[Buffer]
    arena_bytes: int
    logits: Buffer


@dataclass
class _Value:
    """What one operation writes, as floats or as bits."""

    producer: int
    of_bits: bool
    readers: list[int]
    residual_of: list[int]
    buffer: Buffer | None = None

    @property
    def last_use(self) -> int:
        return max([self.producer, *self.readers, *self.residual_of])


@dataclass
class _Links:
    """The values that an operation reads and writes."""

    source: _Value | None
    residual: _Value | None
    out_float: _Value | None
    out_bits: _Value | None


def plan_network(graph: Graph) -> Plan:
    """Return the layers of a network and its arena.

    Raises
    ------
    FedBNNError
        The network has an operation that chips are not given.
    """
    for op in graph.operations:
        if op.kind not in _SUPPORTED:
            raise FedBNNError(
                f"{graph.architecture} has a {op.kind.name} operation, whose sums need "
                "double precision; no microcontroller target runs it. Export a cnn4 or "
                "a resnet, or export the C program without --target"
            )
    links = _connect(graph.operations)
    layers = _layers(graph, links)
    steps = _steps(layers)
    buffers = _buffers(layers, links, steps)
    arena = _place(buffers)
    logits = present(layers[len(graph.operations) - 1].out_float)
    return Plan([layers[i] for i in sorted(layers)], buffers, arena, logits)


def _connect(operations: list[Operation]) -> list[_Links]:
    """Return who writes what for whom; slots are reused, values are not."""
    floats: dict[int, _Value] = {}
    bits: dict[int, _Value] = {}
    links = []
    for index, op in enumerate(operations):
        source = residual = None
        if op.input is not None:
            source = (bits if op.reads_bits else floats)[op.input]
            source.readers.append(index)
        if op.residual is not None:
            residual = floats[op.residual]
            residual.residual_of.append(index)
        link = _Links(source, residual, None, None)
        if op.out_float is not None:
            link.out_float = floats[op.out_float] = _Value(index, False, [], [])
        if op.out_bits is not None:
            link.out_bits = bits[op.out_bits] = _Value(index, True, [], [])
        links.append(link)
    present(links[-1].out_float).readers.append(len(operations) - 1)
    return links


def _outputs(link: _Links) -> list[_Value]:
    """Return the results that somebody reads."""
    both = [value for value in (link.out_float, link.out_bits) if value is not None]
    return [value for value in both if value.readers or value.residual_of]


def _layers(graph: Graph, links: list[_Links]) -> dict[int, Layer]:
    """Return the layers by their operation's number, with shapes but no buffers."""
    shapes = infer_shapes(graph)
    layers: dict[int, Layer] = {}
    for index, (op, shape) in enumerate(zip(graph.operations, shapes, strict=True)):
        if op.kind is Kind.INPUT and _only_convolved(graph, links[index]):
            continue
        layer = Layer(
            op, shape.input, shape.output, shape.fan_in, shape.input[0], shape.output[0]
        )
        source = links[index].source
        if source is not None:
            producer = graph.operations[source.producer]
            layer.reads_image = (
                producer.kind is Kind.INPUT and source.producer not in layers
            )
        before = layers.get(index - 1)
        if before is not None and _streams(before, links[index - 1], op, index):
            _stream(before, layer, shape)
        layers[index] = layer
    return layers


def _only_convolved(graph: Graph, link: _Links) -> bool:
    """Say whether only convolutions read the image: they take the pixels themselves."""
    return all(
        graph.operations[reader].kind in _CONVOLUTIONS
        for value in _outputs(link)
        for reader in (*value.readers, *(-1 for _ in value.residual_of))
    )


def _streams(before: Layer, link: _Links, op: Operation, index: int) -> bool:
    outputs = _outputs(link)
    return (
        op.kind in _POOLING
        and op.residual is None
        and before.op.kind in _CONVOLUTIONS
        and before.op.residual is None
        and len(outputs) == 1
        and outputs[0].readers == [index]
        and not outputs[0].residual_of
    )


def _stream(before: Layer, layer: Layer, shape: OperationShape) -> None:
    """Let a convolution make only what the pooling layer behind it looks at."""
    (rows, columns), stride = layer.op.kernel, layer.op.stride
    height = (shape.output[0] - 1) * stride + rows
    width = (shape.output[1] - 1) * stride + columns
    before.streams = True
    before.output = layer.input = (height, width, before.output[2])
    before.out_rows = layer.in_rows = rows


def _steps(layers: dict[int, Layer]) -> dict[int, int]:
    """Return each operation's step; layers that stream run in the same one."""
    steps: dict[int, int] = {}
    step = 0
    for index in sorted(layers):
        steps[index] = step
        step += not layers[index].streams
    return steps


def _buffers(
    layers: dict[int, Layer], links: list[_Links], steps: dict[int, int]
) -> list[Buffer]:
    buffers: list[Buffer] = []

    def reserve(name: str, size: int, first: int, last: int) -> Buffer:
        buffer = Buffer(name, -(-size // _ALIGNMENT) * _ALIGNMENT, first, last)
        buffers.append(buffer)
        return buffer

    for index, layer in sorted(layers.items()):
        link, step = links[index], steps[index]
        if link.source is not None and not layer.reads_image:
            layer.source = present(link.source.buffer)
        if link.residual is not None:
            layer.residual = present(link.residual.buffer)
        for value in _outputs(link):
            last = steps[value.last_use]
            if value is links[-1].out_float:
                last = step
            if not value.of_bits and _replaces_residual(index, link, steps):
                value.buffer = present(layer.residual)
                value.buffer.last = max(value.buffer.last, last)
            else:
                size = _map_bytes(layer, of_bits=value.of_bits)
                kind = "bits" if value.of_bits else "floats"
                value.buffer = reserve(f"{kind} of layer {index}", size, step, last)
            if value.of_bits:
                layer.out_bits = value.buffer
            else:
                layer.out_float = value.buffer
        if layer.op.kind in (*_CONVOLUTIONS, Kind.LINEAR):
            size = _patch_bytes(layer)
            layer.scratch = reserve(f"patch of layer {index}", size, step, step)
    return buffers


def _replaces_residual(index: int, link: _Links, steps: dict[int, int]) -> bool:
    """Say whether an output may be written over the residual it has just added."""
    residual = link.residual
    return (
        residual is not None
        and residual is not link.source
        and residual.last_use == index
        and residual.producer in steps
    )


def _map_bytes(layer: Layer, *, of_bits: bool) -> int:
    _, width, channels = layer.output
    pixel = -(-channels // 8) if of_bits else 4 * channels
    return layer.out_rows * width * pixel


def _patch_bytes(layer: Layer) -> int:
    """Return the size of what one output position sees."""
    if layer.op.kind is not Kind.BCONV:
        return 8 * layer.fan_in
    rows, columns = layer.op.kernel
    return -(-rows * columns * layer.input[2] // 32) * 4


def _place(buffers: list[Buffer]) -> int:
    """Give each buffer its offset, the largest first; return the arena's size."""
    placed: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda b: (-b.size, b.first)):
        alive = [b for b in placed if b.first <= buffer.last and buffer.first <= b.last]
        offset = 0
        for other in sorted(alive, key=lambda b: b.offset):
            if offset + buffer.size <= other.offset:
                break
            offset = max(offset, other.offset + other.size)
        buffer.offset = offset
        placed.append(buffer)
    return max(b.offset + b.size for b in buffers)

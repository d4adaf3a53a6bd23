"""Small random graphs that the tests of the packed runtime share."""

from dataclasses import dataclass

import numpy as np

from fedbnn_core.packed.builder import GraphBuilder, Value
from fedbnn_core.packed.graph import Graph, Kind

CLASSES = 3


@dataclass(frozen=True)
class Conv:
    """One binary convolution to try."""

    height: int
    width: int
    channels: int
    out_channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    depthwise: bool = False


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def affine(rng: np.random.Generator, channels: int) -> dict[str, np.ndarray]:
    return {"gain": floats(rng, channels), "offset": floats(rng, channels)}


def finish(
    builder: GraphBuilder,
    value: Value,
    image: tuple[int, int, int],
    features: int,
    rng: np.random.Generator,
) -> Graph:
    """Append a linear layer with CLASSES outputs and return the graph."""
    weight = floats(rng, CLASSES, features)
    logits = builder.add(Kind.LINEAR, CLASSES, value, weight=weight)
    channels = image[2]
    return Graph(
        "test",
        image,
        np.full(channels, 1 / 128, np.float32),
        np.full(channels, -1, np.float32),
        [f"class {i}" for i in range(CLASSES)],
        builder.finish(logits),
    )


def conv_graph(case: Conv, rng: np.random.Generator) -> tuple[Graph, np.ndarray]:
    """Return a graph around one binary convolution, and its weights as +-1."""
    inputs = 1 if case.depthwise else case.channels
    shape = (case.out_channels, case.kernel, case.kernel, inputs)
    positive = rng.random(shape) < 0.5
    builder = GraphBuilder()
    image = builder.add(Kind.INPUT, case.channels)
    value = builder.add(
        Kind.BCONV,
        case.out_channels,
        image,
        kernel=(case.kernel, case.kernel),
        stride=case.stride,
        padding=(case.padding,) * 4,
        depthwise=case.depthwise,
        bits=np.packbits(positive, axis=None, bitorder="little"),
        **affine(rng, case.out_channels),
    )
    value = builder.add(Kind.MEAN, case.out_channels, value)
    size = (case.height, case.width, case.channels)
    graph = finish(builder, value, size, case.out_channels, rng)
    return graph, np.where(positive, 1, -1)


def everything(
    channels: int, rng: np.random.Generator, *, layer_norm: bool = True
) -> Graph:
    """Return a graph that uses every operation, flag and epilogue once."""
    builder = GraphBuilder()
    image = builder.add(Kind.INPUT, 3)
    window = {"kernel": (3, 3), "stride": 1, "padding": (1, 1, 1, 1)}

    def signs(*shape: int) -> np.ndarray:
        return np.packbits(rng.random(shape) < 0.5, axis=None, bitorder="little")

    stem = builder.add(
        Kind.CONV,
        channels,
        image,
        kernel=(4, 4),
        stride=1,
        padding=(1, 1, 2, 2),
        weight=floats(rng, 4, 4, 3, channels),
        bias=floats(rng, channels),
        **affine(rng, channels),
    )
    fan_in = 9 * channels
    hidden = builder.add(
        Kind.BCONV,
        channels,
        stem,
        bits=signs(channels, fan_in),
        thresholds=rng.integers(-9, 11, channels).astype(np.int16),
        flips=rng.random(channels) < 0.5,
        **window,
    )
    hidden = builder.add(
        Kind.BCONV,
        channels,
        hidden,
        bits=signs(channels, 9),
        depthwise=True,
        thresholds=rng.integers(-9, 11, channels).astype(np.int16),
        flips=rng.random(channels) < 0.5,
        **window,
    )
    value = builder.add(
        Kind.BCONV,
        channels,
        hidden,
        residual=stem,
        bits=signs(channels, fan_in),
        bias=floats(rng, channels),
        scale=floats(rng, channels),
        clamp=True,
        **affine(rng, channels),
        **window,
    )
    if layer_norm:
        value = builder.add(
            Kind.LAYERNORM,
            channels,
            value,
            gain=floats(rng, channels),
            offset=floats(rng, channels),
            epsilon=1e-6,
        )
    pooled = builder.add(
        Kind.BITPOOL,
        channels,
        value,
        kernel=(2, 2),
        stride=2,
        mask=rng.random(channels) < 0.5,
    )
    value = builder.add(
        Kind.BCONV,
        channels,
        pooled,
        bits=signs(channels, channels),
        kernel=(1, 1),
        stride=1,
    )
    value = builder.add(
        Kind.MAXPOOL,
        channels,
        value,
        kernel=(2, 2),
        stride=2,
        clamp=True,
        **affine(rng, channels),
    )
    value = builder.add(Kind.MEAN, channels, value, **affine(rng, channels))
    logits = builder.add(
        Kind.LINEAR,
        CLASSES,
        value,
        weight=rng.integers(-127, 128, (CLASSES, channels)).astype(np.int8),
        weight_scale=np.abs(floats(rng, CLASSES)),
        bias=floats(rng, CLASSES),
    )
    return Graph(
        "everything",
        (8, 9, 3),
        np.array([0.01, 0.02, 0.03], np.float32),
        np.array([-1.5, -1, -2], np.float32),
        ["a", "b", "ç"],
        builder.finish(logits),
    )

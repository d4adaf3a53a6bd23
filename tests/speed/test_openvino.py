"""Packed networks in OpenVINO: the same sums, the same logits."""

from typing import Any

import numpy as np
import pytest

from fedbnn_core.packed import PackedModel
from fedbnn_core.packed.builder import GraphBuilder, Value
from fedbnn_core.packed.encode import encode
from fedbnn_core.packed.graph import Graph, Kind
from fedbnn_core.speed.openvino import openvino_runner
from fedbnn_core.speed.runtimes import packed_bytes

pytest.importorskip("openvino")

RNG = np.random.default_rng(5)


def graph_of(channels: int, size: int, *layers: dict[str, Any]) -> Graph:
    """Return binary convolutions in a row, their mean and a linear layer."""
    builder = GraphBuilder()
    value = image = builder.add(Kind.INPUT, channels)
    for layer in layers:
        residual = image if layer.get("clamp") else None
        value = builder.add(source=value, residual=residual, **layer)
    mean = builder.add(Kind.MEAN, layers[-1]["out_channels"], value)
    weight = np.eye(layers[-1]["out_channels"], dtype=np.float32)
    logits = builder.add(Kind.LINEAR, len(weight), mean, weight=weight)
    ones = np.ones(channels, np.float32)
    names = [str(number) for number in range(len(weight))]
    operations = builder.finish(Value(*logits))
    return Graph("layers", (size, size, channels), ones, -ones, names, operations)


def binary(
    inputs: int, outputs: int, kernel: int = 3, *, stride: int = 1, **more: Any
) -> dict[str, Any]:
    """Return a binary convolution with random weights."""
    fan_in = kernel * kernel * (1 if more.get("depthwise") else inputs)
    pad = kernel // 2
    return {
        "kind": Kind.BCONV,
        "out_channels": outputs,
        "kernel": (kernel, kernel),
        "stride": stride,
        "padding": (pad, pad, pad, pad),
        "bits": RNG.integers(0, 256, (outputs * fan_in + 7) // 8, dtype=np.uint8),
        **more,
    }


def thresholds(channels: int) -> dict[str, Any]:
    """Return random thresholds, every other one flipped."""
    return {
        "thresholds": RNG.integers(-9, 9, channels).astype(np.int16),
        "flips": np.arange(channels) % 2 == 0,
    }


def bit_pool(channels: int) -> dict[str, Any]:
    """Return a pool of which some channels take the minimum."""
    mask = np.arange(channels) % 3 == 0
    about = {"kernel": (2, 2), "stride": 2, "mask": mask}
    return {"kind": Kind.BITPOOL, "out_channels": channels, **about}


# Exact in float32, in whatever order it is computed.
AFFINE = {
    "gain": np.full(16, 0.125, np.float32),
    "offset": np.full(16, 0.25, np.float32),
    "clamp": True,
}
LAYERS = {
    "3x3": (16, [binary(16, 24)]),
    "odd channels": (5, [binary(5, 7)]),
    "stride 2": (32, [binary(32, 8, stride=2)]),
    "1x1": (8, [binary(8, 40, 1)]),
    "depthwise": (24, [binary(24, 24, 7, depthwise=True)]),
    "residual": (16, [binary(16, 16, **AFFINE), binary(16, 24)]),
    "thresholds": (16, [binary(16, 32, **thresholds(32)), binary(32, 16)]),
    "pool": (16, [binary(16, 32, **thresholds(32)), bit_pool(32), binary(32, 16)]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_sums_are_those_of_the_packed_network(name: str) -> None:
    channels, layers = LAYERS[name]
    graph = graph_of(channels, 8, *layers)
    images = RNG.integers(-16, 16, (2, channels, 8, 8)).astype(np.float32) / 8
    ours = PackedModel(encode(graph)).logits(images, layout="NCHW", normalized=True)
    theirs = np.asarray(openvino_runner(graph, images, 1)())
    # Means of integers over at most 64 positions: a wrong sum differs by 1/32 or more.
    assert np.ptp(ours) > 0
    np.testing.assert_allclose(theirs, ours, atol=1e-4)


def test_a_network_yields_the_same_logits() -> None:
    packed = PackedModel(packed_bytes("cnn4", (1, 28, 28)))
    images = RNG.standard_normal((3, 1, 28, 28)).astype(np.float32)
    ours = packed.logits(images, layout="NCHW", normalized=True)
    theirs = np.asarray(openvino_runner(packed.graph, images, 1)())
    np.testing.assert_allclose(theirs, ours, atol=1e-4)

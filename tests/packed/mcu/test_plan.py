"""The arena: buffers that live together lie apart, and no more is held than needed."""

import numpy as np
import pytest

from fedbnn_core.errors import FedBNNError
from fedbnn_core.networks import ModelSpec
from fedbnn_core.packed.graph import Graph, Kind
from fedbnn_core.packed.mcu.plan import Plan, plan_network
from tests.packed.graphs import everything
from tests.packed.mcu.projects import random_network

CNN4 = ModelSpec("cnn4", (1, 28, 28), 10)
RESNET = ModelSpec("resnet10", (3, 32, 32), 10, width=16)


@pytest.fixture(scope="module", params=["cnn4", "resnet10", "everything"])
def graph(request: pytest.FixtureRequest) -> Graph:
    if request.param == "everything":
        return everything(13, np.random.default_rng(1), layer_norm=False)
    return random_network(CNN4 if request.param == "cnn4" else RESNET)


def test_buffers_that_live_together_lie_apart(graph: Graph) -> None:
    plan = plan_network(graph)
    for step in range(max(buffer.last for buffer in plan.buffers) + 1):
        owner: dict[int, str] = {}
        for buffer in plan.buffers:
            if buffer.first <= step <= buffer.last:
                for byte in range(buffer.offset, buffer.offset + buffer.size):
                    assert byte not in owner, (buffer.name, owner.get(byte))
                    owner[byte] = buffer.name
    assert plan.arena_bytes == max(b.offset + b.size for b in plan.buffers)
    assert all(b.offset % 4 == 0 for b in plan.buffers)


def test_a_buffer_lives_until_its_last_reader(graph: Graph) -> None:
    plan = plan_network(graph)
    step = 0
    for layer in plan.layers:
        for buffer in (layer.source, layer.residual):
            assert buffer is None or buffer.first <= step <= buffer.last
        for buffer in (layer.out_float, layer.out_bits, layer.scratch):
            assert buffer is None or buffer.first <= step <= buffer.last
        step += not layer.streams


def _bit_map(side: int, channels: int) -> int:
    return side * side * channels // 8


def test_cnn4_holds_pooled_maps_and_two_rows_only() -> None:
    plan = plan_network(random_network(CNN4))
    # The largest step: 9 x 128 bits in, the 4 x 256 floats under the last window,
    # their maximum, and a patch of 9 x 128 bits.
    assert plan.arena_bytes == 144 + 4 * 4 * 256 + 4 * 256 + 144
    assert plan.arena_bytes <= 12 * 1024
    streaming = [layer for layer in plan.layers if layer.streams]
    assert [layer.out_rows for layer in streaming] == [2, 2, 2, 2]
    # 28 x 28 x 32 bits are never whole.
    assert _size(plan, 0) == 2 * _bit_map(28, 32) // 28


def _size(plan: Plan, layer: int) -> int:
    buffer = plan.layers[layer].out_bits
    assert buffer is not None
    return buffer.size


def test_resnet_adds_into_its_residual() -> None:
    plan = plan_network(random_network(RESNET))
    stem = 4 * 32 * 32 * 16
    bits = _bit_map(32, 16)
    # The stem's floats, the bits that a layer reads and those that it writes; a little
    # for patches.
    assert stem + 2 * bits <= plan.arena_bytes <= stem + 2 * bits + 256
    last = plan.layers[-3]
    assert last.residual is not None
    assert last.out_float is last.residual


def test_layer_norm_is_refused() -> None:
    with pytest.raises(FedBNNError, match=r"LAYERNORM.*cnn4"):
        plan_network(everything(8, np.random.default_rng(0)))


def test_image_is_read_where_it_lies(graph: Graph) -> None:
    plan = plan_network(graph)
    assert all(layer.op.kind is not Kind.INPUT for layer in plan.layers)
    assert plan.layers[0].reads_image

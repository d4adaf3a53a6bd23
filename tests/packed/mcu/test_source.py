"""`network.c`: thresholds of pixels, and the same file for the same network."""

import numpy as np
import pytest

from fedbnn_core.packed.graph import Graph
from fedbnn_core.packed.mcu.plan import plan_network
from fedbnn_core.packed.mcu.source import network_source, pixel_limits
from fedbnn_core.packed.reference import normalize
from tests.packed.graphs import everything


@pytest.mark.parametrize(
    ("scale", "shift"),
    [(1 / 90, -0.81), (1e-3, -0.5), (0.1, 0.0), (0.5, 3.0), (1 / 255, -0.5)],
)
def test_pixel_limits_are_where_the_sign_changes(scale: float, shift: float) -> None:
    graph = everything(5, np.random.default_rng(0), layer_norm=False)
    graph.pixel_scale[:] = scale
    graph.pixel_shift[:] = shift
    pixels = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1)
    expected = normalize(graph, pixels) >= 0
    assert np.array_equal(pixels >= pixel_limits(graph), expected)


def test_source_depends_on_nothing_but_the_network() -> None:
    def source() -> str:
        graph: Graph = everything(7, np.random.default_rng(3), layer_norm=False)
        return network_source(graph, plan_network(graph))

    assert source() == source()
    assert "_Static_assert(sizeof arena == FBNN_ARENA_BYTES" in source()
    assert "double" not in source()

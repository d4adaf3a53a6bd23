"""torch.compile sees a binary network as one graph, and few times anew."""

import pytest
import torch

from fedbnn_core.binary import Sharpness, begin_epoch, begin_round
from fedbnn_core.networks import ModelSpec, build_model


@pytest.mark.slow
def test_a_binary_network_is_one_graph_in_all_epochs() -> None:
    model = build_model(ModelSpec("cnn4", (1, 16, 16), 3, binary=True), seed=0).train()
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]):
        graphs.append(graph)
        return graph.forward

    # fullgraph: a break is an error.
    model.compile(backend=keep, fullgraph=True)
    begin_round(model)
    for epoch in range(6):
        begin_epoch(model, Sharpness.at(epoch, 6, 0, 1))
        for size in (4, 3):
            model(torch.randn(size, 1, 16, 16)).sum().backward()
    # The first, any batch size, any sharpness, and sharpness above 1.
    assert len(graphs) <= 4

"""torch.compile sees a binary network as one graph, and few times anew."""

import json
import subprocess
import sys

import pytest
import torch

from fedbnn_core.binary import Sharpness, begin_epoch, begin_round
from fedbnn_core.choices import MODELS
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
    # The first, and any batch size; the sharpness is a tensor.
    assert len(graphs) <= 2


@pytest.mark.deploy
@pytest.mark.parametrize("network", MODELS)
def test_a_compiled_step_launches_at_most_three_times_what_its_twin_does(network):
    done = subprocess.run(
        [sys.executable, "-m", "tests.accelerator.compiled", network],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    twin = sum(found["float"].values())
    assert twin > 0
    assert sum(found["binary"].values()) <= 3.0 * twin

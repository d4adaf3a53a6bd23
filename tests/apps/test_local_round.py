"""A client's local round: what the device decides, and what the run."""

import pytest
import torch

from client_app.local_round import LocalRound
from fedbnn_core.config import RunConfig
from fedbnn_core.errors import ConfigError
from fedbnn_core.messages import TrainOrder
from fedbnn_core.methods import create_method
from fedbnn_core.runs.dataset import load_run_dataset


@pytest.mark.parametrize(("node", "threads"), [({"client-threads": 3}, 3), ({}, 2)])
def test_a_device_chooses_its_threads_and_a_simulation_the_runs(node, threads):
    config = RunConfig.from_mapping(
        {"train-limit": 40, "test-limit": 20, "client-threads": 2}, complete=False
    )
    dataset = load_run_dataset(config)
    method = create_method(config, dataset.input_shape, dataset.num_classes)
    before = torch.get_num_threads()
    try:
        LocalRound(
            config.to_mapping(),
            {"partition-id": 0, "num-partitions": 2, **node},
            TrainOrder(0, 1, partition_file=""),
            method.template.broadcast,
        )
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("run", "node", "works"),
    [
        ("auto", {}, True),
        ("no-such", {"device": "cpu"}, True),  # the run's key is for simulations
        ("cpu", {"device": "no-such"}, False),
    ],
)
def test_a_device_chooses_where_it_trains(run, node, works):
    config = RunConfig.from_mapping(
        {"train-limit": 41, "test-limit": 20, "device": run}, complete=False
    )
    dataset = load_run_dataset(config)
    method = create_method(config, dataset.input_shape, dataset.num_classes)

    def start():
        return LocalRound(
            config.to_mapping(),
            {"partition-id": 0, "num-partitions": 2, **node},
            TrainOrder(0, 1, partition_file=""),
            method.template.broadcast,
        )

    if works:
        start()
    else:
        with pytest.raises(ConfigError, match="no-such"):
            start()

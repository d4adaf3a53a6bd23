"""One local round from Flower's records, with data and model cached per process.

A simulation sends thousands of messages to a few processes: each loads the dataset
and builds the model once, so that a simulated client costs its training.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedbnn_core.aggregation import Arrays
from fedbnn_core.allocator import keep_freed_memory
from fedbnn_core.config import RunConfig, Value
from fedbnn_core.data import Dataset, load_client_partition
from fedbnn_core.data.batches import ClientData
from fedbnn_core.methods import create_method
from fedbnn_core.methods.base import ClientUpdate, Method
from fedbnn_core.server_run import load_run_dataset, run_partition
from fedbnn_core.training import LocalTask, choose_device

__all__ = ["run_local_round"]

_Key = tuple[tuple[str, Value], ...]


def run_local_round(
    run_config: Mapping[str, Any],
    node_config: Mapping[str, Any],
    order: Mapping[str, Any],
    broadcast: Arrays,
) -> tuple[ClientUpdate, int]:
    """Train this node's partition; return the update and its number of examples.

    Parameters
    ----------
    run_config : the run's config as Flower delivers it.
    node_config : this node's ``partition-id`` and ``num-partitions``.
    order : the server's ``round``, ``num-rounds`` and ``partition-file``.
    broadcast : the server's arrays.
    """
    key = tuple(sorted(run_config.items()))
    config, method, model, dataset = _prepare(key)
    partition_id = int(node_config["partition-id"])
    indices = _own_indices(
        key, partition_id, int(node_config["num-partitions"]), order["partition-file"]
    )
    device = choose_device(config.device)
    data = ClientData.of(dataset, indices, device=device)
    task = LocalTask(
        round_index=int(order["round"]),
        num_rounds=int(order["num-rounds"]),
        partition_id=partition_id,
        seed=config.seed,
        local_epochs=config.local_epochs,
        batch_size=config.batch_size,
        lr=config.learning_rate(int(order["round"])),
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
    return method.train(model, broadcast, data, task), len(data)


@lru_cache(maxsize=1)
def _prepare(key: _Key) -> tuple[RunConfig, Method, nn.Module, Dataset]:
    config = RunConfig.from_mapping(dict(key))
    keep_freed_memory()
    if config.client_threads:
        torch.set_num_threads(config.client_threads)
    dataset = load_run_dataset(config)
    method = create_method(config, dataset.input_shape, dataset.num_classes)
    return config, method, method.new_model().to(choose_device(config.device)), dataset


def _own_indices(
    key: _Key, partition_id: int, num_partitions: int, partition_file: str
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Read this client's samples from the server's file, or compute the partition.

    The file is there in a simulation; on another host every client computes the same
    partition from the config once.
    """
    path = Path(partition_file)
    if path.is_file():
        return load_client_partition(path, partition_id)
    return _computed_partition(key, num_partitions)[partition_id]


@lru_cache(maxsize=1)
def _computed_partition(
    key: _Key, num_partitions: int
) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    config, _, _, dataset = _prepare(key)
    return run_partition(config, dataset, num_partitions)

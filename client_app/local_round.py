"""One local round from Flower's records, with data and model cached per process.

A simulation sends thousands of messages to a few processes: each loads the dataset
and builds the model once, so that a simulated client costs its training.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from logging import DEBUG, WARNING
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.common.logger import log
from torch import nn

from client_app.node import own_data_path
from fedbnn_core.arrays import Arrays
from fedbnn_core.config import RunConfig, Value
from fedbnn_core.data import Dataset, load_client_partition
from fedbnn_core.data.batches import ClientData
from fedbnn_core.fleet.own_data import DataTask, load_own_data
from fedbnn_core.messages import TrainOrder
from fedbnn_core.methods import create_method
from fedbnn_core.methods.base import ClientUpdate, Method
from fedbnn_core.runs.dataset import load_run_dataset, run_partition
from fedbnn_core.training.compilation import compile_steps
from fedbnn_core.training.device import (
    choose_device,
    explain_device,
    keep_freed_memory,
    set_deterministic,
)
from fedbnn_core.training.local import LocalTask

__all__ = ["LocalRound", "load", "on_load", "run_local_round"]

_Key = tuple[tuple[str, Value], ...]
_LOCAL_KEYS = ("data-dir", "device", "client-threads")
"""Config keys that a device decides for itself."""

on_load: Callable[[dict[str, Any]], None] | None = None
"""Told what a round needs, if it is set: what `load` takes."""


class LocalRound:
    """One client's part in one round.

    Parameters
    ----------
    run_config : the run's config as Flower delivers it.
    node_config : this node's ``partition-id``; where a device has them, the path of
        its own images as ``data``, of its datasets as ``data-dir``, and its
        ``device`` and ``client-threads``.
    order : the server's order.
    sent : the server's arrays as they came.
    """

    def __init__(
        self,
        run_config: Mapping[str, Any],
        node_config: Mapping[str, Any],
        order: TrainOrder,
        sent: Arrays,
    ) -> None:
        local = {k: node_config[k] for k in _LOCAL_KEYS if k in node_config}
        key = tuple(sorted({**run_config, **local}.items()))
        own = own_data_path(node_config)
        task = order.task if own else ""
        count = order.num_partitions or int(node_config.get("num-partitions", 0))
        computed = 0 if own or Path(order.partition_file).is_file() else count
        if on_load is not None:
            on_load({"key": key, "own": own, "task": task, "num_partitions": computed})
        self.config, self._method, self._model, dataset = _prepare(key, own, task)
        self.broadcast = self._method.wire.read_order(sent, order.round_index)
        """The state that this client starts from."""
        partition_id = int(node_config["partition-id"])
        if own:
            indices = np.arange(len(dataset.y_train))
        else:
            indices = _own_indices(key, partition_id, count, order.partition_file)
        device = choose_device(self.config.device)
        self._data = ClientData.of(dataset, indices, device=device)
        self._task = LocalTask(
            round_index=order.round_index,
            num_rounds=order.num_rounds,
            partition_id=partition_id,
            seed=self.config.seed,
            local_epochs=self.config.local_epochs,
            batch_size=self.config.batch_size,
            lr=self.config.learning_rate(order.round_index),
            momentum=self.config.momentum,
            weight_decay=self.config.weight_decay,
        )

    def train(self) -> tuple[ClientUpdate, int]:
        """Train on this node's samples; return the update and their number."""
        try:
            update = self._method.train(
                self._model, self.broadcast, self._data, self._task
            )
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            # Weights that have diverged cannot be rotated. In a private run nobody
            # may know: the update is zero, and its noise hides that.
            if self.config.privacy == "none":
                raise
            update = ClientUpdate(arrays=self.broadcast, rotations={}, loss=None)
        return update, len(self._data)

    def coded(self, arrays: Arrays) -> Arrays:
        """Return an update's arrays as they travel."""
        return self._method.wire.reply(
            arrays,
            self.broadcast,
            round_index=self._task.round_index,
            client=self._task.partition_id,
        )

    def publish(self, arrays: Arrays) -> tuple[ClientUpdate, int]:
        """Return an update that holds nothing but private arrays and what they tell.

        Loss, layer metrics and the number of examples stay on the device; all clients
        of a private run get the same weight.
        """
        rotations = self._method.relearn_rotations(
            self._model, self.broadcast, arrays, self._task
        )
        return ClientUpdate(arrays=arrays, rotations=rotations, loss=None), 1


def run_local_round(
    run_config: Mapping[str, Any],
    node_config: Mapping[str, Any],
    order: TrainOrder,
    sent: Arrays,
) -> tuple[ClientUpdate, int]:
    """Train this node's partition; return the update and its number of examples."""
    return LocalRound(run_config, node_config, order, sent).train()


def load(wanted: Mapping[str, Any]) -> None:
    """Load the data and the network of a round for processes that are forked later.

    Parameters
    ----------
    wanted : what `on_load` was told, also after a way through JSON.
    """
    key = tuple((str(name), value) for name, value in wanted["key"])
    _loaded(key, wanted["own"], wanted["task"])
    if wanted["num_partitions"]:
        _computed_partition(key, wanted["num_partitions"])


@lru_cache(maxsize=1)
def _loaded(
    key: _Key, own: str, task: str
) -> tuple[RunConfig, Method, nn.Module, Dataset]:
    """Return what survives a fork: the network is not on its device yet."""
    config = RunConfig.from_mapping(dict(key))
    if own:
        dataset = load_own_data(own, DataTask.from_json(task))
    else:
        dataset = load_run_dataset(config)
    method = create_method(config, dataset.input_shape, dataset.num_classes)
    # The wire first: it shares the network's construction.
    _ = method.wire
    return config, method, method.new_model(), dataset


@lru_cache(maxsize=1)
def _prepare(
    key: _Key, own: str, task: str
) -> tuple[RunConfig, Method, nn.Module, Dataset]:
    config = RunConfig.from_mapping(dict(key))
    keep_freed_memory()
    if config.client_threads:
        torch.set_num_threads(config.client_threads)
    if config.deterministic:
        set_deterministic()
    _, method, model, dataset = _loaded(key, own, task)
    choice = explain_device(config.device)
    level = WARNING if choice.lies_idle else DEBUG
    log(level, "This client trains on %s: %s", choice.device, choice.reason)
    model = model.to(choice.device)
    if config.compile:
        compile_steps(model)
    return config, method, model, dataset


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
    config, _, _, dataset = _loaded(key, "", "")
    return run_partition(config, dataset, num_partitions)

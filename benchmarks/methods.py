"""What each method's local epoch costs next to FedAvg's.

Same process, one thread, same images, whole client rounds of one epoch, methods
interleaved: loading the broadcast, training and encoding the reply are all part of it.
A client has some 500 images, as in the paper's federations of 100: what a method does
once per epoch or round is spread over 8 or 10 steps, and half of FedBAT's are warm-up.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedbnn_core.config import RunConfig
from fedbnn_core.data import Dataset, load_dataset
from fedbnn_core.data.batches import ClientData
from fedbnn_core.data.registry import DATASETS
from fedbnn_core.methods import create_method, method_names
from fedbnn_core.training.device import keep_freed_memory
from fedbnn_core.training.local import LocalTask

CASES = (("cnn4", "fmnist-mini", 600, 11), ("resnet10", "noise 3x32x32", 500, 5))
"""Model, images, samples of the client, repetitions."""


def _dataset(name: str) -> Dataset:
    """Return a real dataset, or noise in the shape of CIFAR-10's images."""
    if name in DATASETS:
        return load_dataset(name)
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (1000, 3, 32, 32), dtype=np.uint8)
    labels = generator.integers(0, 10, len(images))
    cifar10 = DATASETS["cifar10"]
    assert cifar10.statistics is not None
    return Dataset(
        name=name,
        x_train=images,
        y_train=labels,
        x_test=images,
        y_test=labels,
        class_names=tuple("0123456789"),
        mean=cifar10.statistics.mean,
        std=cifar10.statistics.std,
        augmentation=cifar10.augmentation,
    )


def _round(
    method_name: str, model_name: str, dataset: Dataset, samples: int
) -> Callable[[], float]:
    """Return a function that does one client round and returns its seconds."""
    config = RunConfig.from_mapping(
        {"method": method_name, "model": model_name}, complete=False
    )
    method = create_method(config, dataset.input_shape, dataset.num_classes)
    model, broadcast = method.new_model(), method.template.broadcast
    data = ClientData.of(dataset, np.arange(samples))
    task = LocalTask(
        round_index=0,
        num_rounds=30,
        partition_id=0,
        seed=1,
        local_epochs=1,
        batch_size=64,
        lr=0.01,
    )

    def run() -> float:
        start = time.perf_counter()
        method.train(model, broadcast, data, task)
        return time.perf_counter() - start

    return run


def measure(
    model_name: str, dataset: Dataset, samples: int, repeats: int
) -> dict[str, tuple[float, ...]]:
    """Return each method's median seconds and median ratio to FedAvg."""
    rounds = {
        name: _round(name, model_name, dataset, samples) for name in method_names()
    }
    for one_round in rounds.values():
        one_round()
    seconds = [
        {name: one_round() for name, one_round in rounds.items()}
        for _ in range(repeats)
    ]
    return {
        name: (
            statistics.median(line[name] for line in seconds),
            statistics.median(line[name] / line["fedavg"] for line in seconds),
        )
        for name in rounds
    }


def main() -> None:
    """Print the table."""
    keep_freed_memory()  # as clients do
    torch.set_num_threads(1)
    table = Table(title="Client round of one epoch, 1 thread, interleaved, median")
    columns = ("model", "images", "samples", "rounds", "method", "s", "FedAvg = 1")
    for column in columns:
        table.add_column(column, justify="right")
    for model_name, images, samples, repeats in CASES:
        figures = measure(model_name, _dataset(images), samples, repeats)
        for name, (seconds, ratio) in figures.items():
            table.add_row(
                model_name,
                images,
                str(samples),
                str(repeats),
                name,
                f"{seconds:.3f}",
                f"{ratio:.2f}x",
            )
    Console().print(table)


if __name__ == "__main__":
    main()

"""What each method's local epoch costs next to FedAvg's.

Same process, one thread, same real images, whole client rounds of one epoch, methods
interleaved: loading the broadcast, training and encoding the reply are all part of it.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedbnn_core.config import RunConfig
from fedbnn_core.data import load_dataset
from fedbnn_core.data.batches import ClientData
from fedbnn_core.methods import create_method, method_names
from fedbnn_core.training import LocalTask

CASES = (("cnn4", 600, 11), ("resnet10", 64, 5))
"""Model, samples of the client, repetitions."""


def _round(method_name: str, model_name: str, samples: int) -> Callable[[], float]:
    """Return a function that does one client round and returns its seconds."""
    dataset = load_dataset("fmnist-mini")
    config = RunConfig.from_mapping(
        {"method": method_name, "model": model_name}, complete=False
    )
    method = create_method(config, dataset.input_shape, dataset.num_classes)
    model, broadcast = method.new_model(), method.initial_broadcast()
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
    model_name: str, samples: int, repeats: int
) -> dict[str, tuple[float, ...]]:
    """Return each method's median seconds and median ratio to FedAvg."""
    rounds = {name: _round(name, model_name, samples) for name in method_names()}
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
    torch.set_num_threads(1)
    table = Table(title="Client round of one epoch, 1 thread, interleaved, median")
    for column in ("model", "samples", "rounds", "method", "s", "FedAvg = 1"):
        table.add_column(column, justify="right")
    for model_name, samples, repeats in CASES:
        for name, (seconds, ratio) in measure(model_name, samples, repeats).items():
            table.add_row(
                model_name,
                str(samples),
                str(repeats),
                name,
                f"{seconds:.3f}",
                f"{ratio:.2f}x",
            )
    Console().print(table)


if __name__ == "__main__":
    main()

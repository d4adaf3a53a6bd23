"""What a FedBNN local epoch costs next to the float twin's.

Same process, one thread, same 600 real images, epochs interleaved; rotation learning
is part of FedBNN's epoch. The goal is at most 1.25 times the float twin's time.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedbnn_core.binary.model import begin_epoch, begin_round
from fedbnn_core.binary.surrogate import Sharpness
from fedbnn_core.data import load_dataset
from fedbnn_core.data.batches import ClientData
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.training.device import keep_freed_memory
from fedbnn_core.training.local import LocalTask, prefer_channels_last, train_locally

SAMPLES = 600
REPEATS = 11


def _epoch(name: str, *, binary: bool, samples: int) -> Callable[[], float]:
    """Return a function that trains one epoch and returns its seconds."""
    dataset = load_dataset("fmnist-mini")
    spec = ModelSpec(name, dataset.input_shape, dataset.num_classes, binary=binary)
    model = prefer_channels_last(build_model(spec, seed=1))
    begin_round(model)
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
        train_locally(
            model,
            data,
            task,
            begin_epoch=lambda _: begin_epoch(model, Sharpness(0.1)),
        )
        return time.perf_counter() - start

    return run


def measure(name: str, samples: int, repeats: int) -> tuple[float, float, float]:
    """Return the median seconds of float and binary epochs and of their ratio."""
    epochs = [_epoch(name, binary=binary, samples=samples) for binary in (False, True)]
    for epoch in epochs:
        epoch()
    pairs = [[epoch() for epoch in epochs] for _ in range(repeats)]
    return (
        statistics.median(pair[0] for pair in pairs),
        statistics.median(pair[1] for pair in pairs),
        statistics.median(pair[1] / pair[0] for pair in pairs),
    )


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as a client does
    table = Table(title="Local epoch, 1 thread, interleaved, median (goal: <= 1.25x)")
    for column in ("model", "samples", "epochs", "float twin s", "FedBNN s", "ratio"):
        table.add_column(column, justify="right")
    for name, samples, repeats in (("cnn4", SAMPLES, REPEATS), ("resnet10", 64, 5)):
        float_s, binary_s, ratio = measure(name, samples, repeats)
        table.add_row(
            name,
            str(samples),
            str(repeats),
            f"{float_s:.3f}",
            f"{binary_s:.3f}",
            f"{ratio:.2f}x",
        )
    Console().print(table)


if __name__ == "__main__":
    main()

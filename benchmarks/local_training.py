"""What a FedBNN client's epoch costs next to FedAvg's, by gradient-bits.

Same process, one thread, same real images, epochs interleaved, CPU time of the thread;
rotation learning is part of FedBNN's epoch. Then the peak memory of a training step.
``python -m benchmarks.local_training avx2`` trains with that kernel; beside it
``ATEN_CPU_CAPABILITY=avx2`` in the environment restricts torch.
Goals with 8 bits: at most 0.65 times FedAvg's epoch for CNN4 and ResNet10, 0.9 times
for ConvNeXt-Tiny, and a third of the memory of float gradients.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedbnn_core.binary import native_steps
from fedbnn_core.binary.model import begin_epoch, begin_round
from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.binary.surrogate import Sharpness
from fedbnn_core.choices import GRADIENT_BITS as CHOICES
from fedbnn_core.data import load_dataset
from fedbnn_core.data.batches import ClientData
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.speed.memory import status_bytes
from fedbnn_core.training.device import keep_freed_memory
from fedbnn_core.training.local import LocalTask, prefer_channels_last, train_locally

BATCH = 64
GRADIENT_BITS = [bits for bits in CHOICES if bits]
STEM = "cnn4, float first layer"
CASES = (
    ("cnn4", 600, 11),
    (STEM, 600, 11),
    ("resnet10", 128, 5),
    ("convnext-tiny", 64, 3),
)
"""Network, images of the client, repeats. The second is the default of a run."""
MEMORY_CASE, PROCESSES = "resnet18", 7


def _trainer(name: str, *, bits: int | None) -> Callable[[int], float]:
    """Return a function that trains an epoch of so many images and returns CPU seconds.

    ``bits`` of the gradient; None is FedAvg's float twin.
    """
    dataset = load_dataset("fmnist-mini")
    spec = ModelSpec(
        "cnn4" if name == STEM else name,
        dataset.input_shape,
        dataset.num_classes,
        binary=bits is not None,
        float_first=name == STEM,
        options=BinaryOptions(gradient_bits=bits or 32),
    )
    model = prefer_channels_last(build_model(spec, seed=1))
    begin_round(model)
    task = LocalTask(
        round_index=0,
        num_rounds=30,
        partition_id=0,
        seed=1,
        local_epochs=1,
        batch_size=BATCH,
        lr=0.01,
    )

    def run(samples: int) -> float:
        data = ClientData.of(dataset, np.arange(samples))
        start = time.thread_time()
        train_locally(
            model,
            data,
            task,
            begin_epoch=lambda _: begin_epoch(model, Sharpness(0.1)),
        )
        return time.thread_time() - start

    return run


def measure(name: str, samples: int, repeats: int) -> dict[int | None, list[float]]:
    """Return median seconds, and the median ratio to FedAvg, of every variant."""
    variants = (None, *GRADIENT_BITS)
    trainers = {bits: _trainer(name, bits=bits) for bits in variants}
    for train in trainers.values():
        train(samples)
    turns = [
        {b: train(samples) for b, train in trainers.items()} for _ in range(repeats)
    ]
    return {
        bits: [
            statistics.median(turn[bits] for turn in turns),
            statistics.median(turn[bits] / turn[None] for turn in turns),
        ]
        for bits in variants
    }


def step_memory(name: str, bits: int | None) -> float:
    """Return the megabytes by which one training step raises a process's peak.

    The median of several processes: where their blocks come to lie makes a difference.
    """
    text = "float" if bits is None else str(bits)
    command = [sys.executable, "-m", __spec__.name, name, text]
    return statistics.median(
        float(subprocess.check_output(command, text=True)) for _ in range(PROCESSES)
    )


def _print_step_memory(name: str, bits: int | None) -> None:
    """Train one step of two images, then one of a whole batch; print the difference.

    ru_maxrss would begin with the peak of the process that started this one.
    """
    torch.set_num_threads(1)
    train = _trainer(name, bits=bits)
    train(2)  # loads what torch itself needs, and makes the gradients
    before = status_bytes("VmHWM")
    train(BATCH)
    print((status_bytes("VmHWM") - before) / 2**20)


def _show(bits: int | None) -> str:
    return "FedAvg" if bits is None else f"{bits} bits"


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as a client does
    console = Console()
    torch_uses = torch.backends.cpu.get_cpu_capability()
    console.print(f"kernel {native_steps.kernel()}, torch with {torch_uses}")
    table = Table(title="Client epoch: CPU seconds, and times FedAvg's; median")
    for column in ("model", "images", *map(_show, (None, *GRADIENT_BITS))):
        table.add_column(column, justify="right")
    for name, samples, repeats in CASES:
        cells = [
            f"{s:.3f} ({r:.2f}x)"
            for s, r in measure(*(name, samples, repeats)).values()
        ]
        table.add_row(name, str(samples), *cells)
    console.print(table)
    table = Table(title=f"Peak memory of a step, {MEMORY_CASE}, batch {BATCH}")
    for column in ("variant", "MB"):
        table.add_column(column, justify="right")
    for bits in (None, *GRADIENT_BITS):
        table.add_row(_show(bits), f"{step_memory(MEMORY_CASE, bits):.0f}")
    console.print(table)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        native_steps.use_kernel(sys.argv[1])
    if len(sys.argv) == 3:
        _print_step_memory(
            sys.argv[1], None if sys.argv[2] == "float" else int(sys.argv[2])
        )
    else:
        main()

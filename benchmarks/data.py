"""Data loading: speed against torchvision, share of a training step, memory.

Loaders are compared by the best of several times, steps by CPU time: on a busy machine
the median of wall times favours what is short enough to escape interruption.
"""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fedbnn_core.data import Dataset, partition_indices
from fedbnn_core.data.batches import ClientData
from fedbnn_core.data.cache import Allocate, Decoded, decode_once
from fedbnn_core.data.registry import DATASETS
from fedbnn_core.data.torchvision_compat import import_torchvision
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.training.local import prefer_channels_last

BATCH = 64
REPEATS = 7
# A client's share of CIFAR-10 among 100.
CLIENT_SAMPLES = 500
TINY_SHAPE = (100_000, 3, 64, 64)
CLIENTS, PROCESSES = 100, 4

Batches = Iterator[Any]


def main() -> None:
    """Print all figures of this module."""
    torch.set_num_threads(1)
    console = Console()
    console.print(_throughput())
    console.print(_share_of_training())
    if Path("/proc/self/smaps").exists():
        console.print(_memory())


def _random_images(count: int) -> np.ndarray:
    # Neither cropping nor flipping depends on what is in the pixels.
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def _client(images: np.ndarray) -> ClientData:
    spec = DATASETS["cifar10"]
    assert spec.statistics
    return ClientData(
        images,
        np.arange(len(images)) % 10,
        spec.statistics.mean,
        spec.statistics.std,
        augmentation=spec.augmentation,
    )


def _seconds_per_batch(epoch: Callable[[], Batches]) -> float:
    start = time.perf_counter()
    count = sum(1 for _ in epoch())
    return (time.perf_counter() - start) / count


def _torchvision_epochs() -> dict[str, Callable[[], Batches]]:
    """Make the customary loaders: Pillow images, transformed one by one."""
    transforms = import_torchvision("torchvision.transforms")
    spec = DATASETS["cifar10"]
    assert spec.statistics
    transform = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(spec.statistics.mean, spec.statistics.std),
        ]
    )
    images = _random_images(2000).transpose(0, 2, 3, 1)

    class PerImage(torch.utils.data.Dataset[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return transform(Image.fromarray(images[index])), index % 10

    loaders = {
        f"torchvision, {workers} workers": torch.utils.data.DataLoader(
            PerImage(),
            batch_size=BATCH,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        for workers in (0, 2)
    }
    return {name: loader.__iter__ for name, loader in loaders.items()}


def _throughput() -> Table:
    client = _client(_random_images(CLIENT_SAMPLES))
    epochs: dict[str, Callable[[], Batches]] = {
        "fedbnn, 1 thread": lambda: client.epoch(BATCH, seed=1),
        **_torchvision_epochs(),
    }
    times: dict[str, list[float]] = {name: [] for name in epochs}
    for repeat in range(REPEATS + 1):
        for name, epoch in epochs.items():
            seconds = _seconds_per_batch(epoch)
            if repeat:
                times[name].append(seconds)
    table = Table(
        title=f"Augmented CIFAR-10 batches of {BATCH}, best of {REPEATS}, interleaved"
    )
    for heading in ("loader", "batches/s", "ms/batch", "times slower"):
        table.add_column(heading)
    ours = min(times["fedbnn, 1 thread"])
    for name, values in times.items():
        seconds = min(values)
        table.add_row(
            name, f"{1 / seconds:,.0f}", f"{seconds * 1e3:.3f}", f"{seconds / ours:.1f}"
        )
    return table


def _share_of_training() -> Table:
    table = Table(
        title=f"Making a batch of {BATCH}, as share of a CNN4 training step on it"
    )
    for heading in ("network, 1 thread", "batch CPU ms", "step CPU ms", "share"):
        table.add_column(heading)
    images = _random_images(CLIENT_SAMPLES)
    setups = []
    for _ in range(REPEATS):
        start = time.process_time()
        client = _client(images)
        setups.append(time.process_time() - start)
    setup_ms = median(setups) * 1e3
    table.caption = (
        f"{setup_ms:.1f} CPU ms once a round to prepare {CLIENT_SAMPLES} samples"
    )
    for binary in (True, False):
        spec = ModelSpec("cnn4", (3, 32, 32), 10, binary=binary)
        model = prefer_channels_last(build_model(spec, seed=0))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        making, training = [], []
        for repeat in range(REPEATS):
            batches = client.epoch(BATCH, seed=repeat)
            while True:
                start = time.process_time()
                batch = next(batches, None)
                if batch is None:
                    break
                middle = time.process_time()
                optimizer.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
                optimizer.step()
                making.append(middle - start)
                training.append(time.process_time() - middle)
        batch_s, step_s = median(making), median(training)
        table.add_row(
            "CNN4, 1-bit" if binary else "CNN4, float",
            f"{batch_s * 1e3:.3f}",
            f"{step_s * 1e3:.1f}",
            f"{batch_s / (batch_s + step_s):.2%}",
        )
    return table


def _read_tiny(allocate: Allocate) -> Decoded:
    """Stand in for decoded Tiny-ImageNet: its size, written once."""
    images = allocate("x_train", TINY_SHAPE)
    images[...] = 1
    labels = np.arange(len(images)) % 200
    names = tuple(map(str, range(200)))
    return Decoded(images, labels, images[:0], labels[:0], class_names=names)


def _act_as_clients(source: Path, process: int, barrier: Barrier, results: Any) -> None:
    """Be the data side of every PROCESSES-th client, then report memory."""
    decoded = decode_once("tiny", [source], _read_tiny).decoded
    dataset = Dataset(
        name="tiny",
        x_train=decoded.x_train,
        y_train=decoded.y_train,
        x_test=decoded.x_test,
        y_test=decoded.y_test,
        class_names=decoded.class_names,
        mean=(0.5,) * 3,
        std=(0.2,) * 3,
        augmentation=DATASETS["tiny-imagenet"].augmentation,
    )
    parts = partition_indices(dataset.y_train, CLIENTS, "iid", seed=0)
    for client in range(process, CLIENTS, PROCESSES):
        data = ClientData.of(dataset, parts[client])
        next(data.epoch(BATCH, seed=client))
    # Touch the whole map, the worst case, and measure while all others hold it too.
    int(decoded.x_train[:, 0, 0, ::16].sum())
    barrier.wait()
    results.put((_map_pss_bytes("x_train.npy"), _private_bytes()))
    barrier.wait()


def _map_pss_bytes(name: str) -> int:
    """Return this process's proportional share of a mapped file."""
    inside, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            inside = line.endswith(name)
        elif inside and first == "Pss:":
            total += int(line.split()[1]) * 1024
    return total


def _private_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(x for x in status if x.startswith("RssAnon")).split()[1]) * 1024


def _memory() -> Table:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDBNN_CACHE"] = folder
        source = Path(folder) / "source"
        source.write_bytes(b"tiny")
        barrier, results = context.Barrier(PROCESSES), context.Queue()
        processes = [
            context.Process(
                target=_act_as_clients, args=(source, number, barrier, results)
            )
            for number in range(PROCESSES)
        ]
        for process in processes:
            process.start()
        figures = [results.get(timeout=600) for _ in processes]
        for process in processes:
            process.join()
        del os.environ["FEDBNN_CACHE"]
    shared = sum(pss for pss, _ in figures)
    table = Table(
        title=f"{CLIENTS} clients of Tiny-ImageNet's size in {PROCESSES} processes"
    )
    table.add_column("what")
    table.add_column("MB", justify="right")
    table.add_row("one copy of the 100,000 images", f"{np.prod(TINY_SHAPE) / 1e6:,.0f}")
    table.add_row("images in memory, all processes together", f"{shared / 1e6:,.0f}")
    private = max(value for _, value in figures)
    table.add_row("private memory of the largest process", f"{private / 1e6:,.0f}")
    return table

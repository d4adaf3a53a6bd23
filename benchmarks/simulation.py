"""What a simulated round costs next to the same training in two bare processes.

Both train the same 10 clients of the embedded data for 5 epochs: 10 of 16 with 625
images each, as many as in the paper, and 10 of 100 with 100 images. The bare processes
keep their model and data between rounds, as simulated clients do; they get their
weights through a pipe. The goal is at most 1.10 times their time. Peak memory is the
kernel's high-water mark of each process.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from client_app.local_round import run_local_round
from fedbnn_core.arrays import Arrays
from fedbnn_core.config import RunConfig
from fedbnn_core.flower import run_simulation
from fedbnn_core.flower.processes import marked_processes
from fedbnn_core.messages import TrainOrder
from fedbnn_core.methods import create_method
from fedbnn_core.runs.dataset import load_run_dataset
from fedbnn_core.runs.directory import RunDirectory

PER_ROUND, ROUNDS = 10, 7
FEDERATIONS = (16, 100)


def _train_bare(work: tuple[dict[str, Any], int, int, int, Arrays]) -> int:
    """Train one client in a bare process."""
    torch.set_num_threads(1)
    config, clients, partition, round_index, broadcast = work
    node = {"partition-id": partition, "num-partitions": clients}
    order = TrainOrder(round_index, ROUNDS, partition_file="")
    _, examples = run_local_round(config, node, order, broadcast)
    return examples


def bare_rounds(config: RunConfig, clients: int, rounds: int) -> list[float]:
    """Return the seconds of each round in two bare processes, without the first."""
    dataset = load_run_dataset(config)
    method = create_method(config, dataset.input_shape, dataset.num_classes)
    broadcast = method.template.broadcast
    seconds = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for round_index in range(rounds + 1):
            start = time.perf_counter()
            work = [
                (config.to_mapping(), clients, partition, round_index, broadcast)
                for partition in range(PER_ROUND)
            ]
            list(pool.map(_train_bare, work))
            seconds.append(time.perf_counter() - start)
    return seconds[1:]


def _peak_megabytes(home_marker: str) -> Iterator[tuple[str, float]]:
    for process in marked_processes("FEDBNN_RUN_HOME", home_marker):
        folder = Path("/proc") / str(process)
        try:
            name = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            status = (folder / "status").read_text()
        except OSError:
            continue
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                yield name, int(line.split()[1]) / 1024


def simulated_rounds(
    config: RunConfig, clients: int
) -> tuple[list[float], dict[str, float]]:
    """Return the training seconds of each round but the first, and peak memories."""
    peaks: dict[str, float] = {}

    def watch(line: str) -> None:
        if "round " not in line:
            return
        for folder in Path(tempfile.gettempdir()).glob("fedbnn-*"):
            for name, size in _peak_megabytes(str(folder)):
                for part in ("ClientAppActor", "flwr-simulation"):
                    if part in name:
                        peaks[part] = max(peaks.get(part, 0.0), size)

    with tempfile.TemporaryDirectory() as folder:
        overrides = config.to_mapping() | {"output-dir": folder}
        result = run_simulation(overrides, num_clients=clients, on_line=watch)
        if result.directory is None:
            raise SystemExit(f"the simulation did not complete: {result.status}")
        rounds = RunDirectory(result.directory).read_metrics()
    return [metrics.seconds["train"] for metrics in rounds][1:], peaks


def main() -> None:
    """Print the table."""
    config = RunConfig.from_mapping(
        {
            "num-server-rounds": ROUNDS,
            "clients-per-round": PER_ROUND,
            "client-threads": 1,
            "evaluate-every": ROUNDS,
        },
        complete=False,
    )
    table = Table(title="A round of 10 clients x 5 epochs on 2 cores, median")
    for column in (
        "clients",
        "bare s",
        "simulated s",
        "goal <= 1.10",
        "MB",
        "server MB",
    ):
        table.add_column(column, justify="right")
    for clients in FEDERATIONS:
        bare = bare_rounds(config, clients, ROUNDS // 2)
        simulated, peaks = simulated_rounds(config, clients)
        bare += bare_rounds(config, clients, ROUNDS // 2)
        here, there = statistics.median(simulated), statistics.median(bare)
        memory = [peaks.get(p, math.nan) for p in ("ClientAppActor", "flwr-simulation")]
        cells = f"{there:.2f}", f"{here:.2f}", f"{here / there:.2f}x"
        table.add_row(str(clients), *cells, *(f"{size:.0f}" for size in memory))
    Console().print(table)


if __name__ == "__main__":
    main()

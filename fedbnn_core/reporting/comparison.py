"""What several finished runs scored and cost, side by side."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedbnn_core.config import RunConfig
from fedbnn_core.errors import RunError
from fedbnn_core.methods import create_method
from fedbnn_core.networks.complexity import Complexity, complexity_of
from fedbnn_core.runs.directory import RunDirectory
from fedbnn_core.runs.metrics import Summary

__all__ = [
    "RunFigures",
    "as_csv",
    "bytes_to",
    "common_target",
    "different_data",
    "gaps",
    "read_run",
]


@dataclass(frozen=True)
class RunFigures:
    """One finished run. FLOPs and memory are those of its model at inference."""

    name: str
    """The run directory's name."""
    method: str
    binary: bool
    """Whether its model is binary without further ado."""
    model: str
    dataset: str
    partition: str
    rounds: int
    test_accuracy: float
    """Share of the test half, 0 to 1."""
    test_images: int
    ptb_test_accuracy: float | None
    """After post-training binarization; None if it was not scored so."""
    best_round: int
    bytes_up: int
    """All rounds and clients, as travelled."""
    bytes_up_nominal: int
    bytes_down: int
    bytes_down_nominal: int
    bits_up: float | None
    """Of one client's message per trained number; None if the run did not note it."""
    bits_down: float | None
    flops: float
    """By the paper's rules: convolutions only, binary ones / 58."""
    float_flops: int
    """Float operations that really remain, head included."""
    one_bit_ops: int
    """Operations on single bits."""
    memory_mb: float
    """By the paper's rule: 4 bytes per parameter, a 1-bit network's / 32."""
    memory_measured_mb: float
    """1 bit per binary weight, 4 bytes for all else."""
    seconds: float
    seconds_per_round: float
    rounds_seen: tuple[int, ...]
    """Evaluated rounds, for curves."""
    val_accuracy: tuple[float, ...]
    """Validation accuracy of those rounds."""
    total_bytes: tuple[int, ...]
    """Bytes up and down until the end of those rounds."""


def read_run(path: Path) -> RunFigures:
    """Return the figures of a run; raise `RunError` if it did not come to its end."""
    directory = RunDirectory.open(path)
    summary, stored = directory.read_summary(), directory.read_json("config.json")
    if summary is None:
        raise RunError(f"{path} has no summary.json: the run has not ended yet")
    if summary.stopped:
        raise RunError(
            f"{path} was stopped after round {summary.rounds}: "
            f"{summary.reason}; go on with `fedbnn resume`, or leave it out"
        )
    if summary.test_accuracy is None or summary.best_round is None:
        raise RunError(f"{path} has no test accuracy in its summary.json")
    rounds = directory.read_metrics()
    config = RunConfig.from_mapping(stored["config"], complete=False)
    channels, height, width = stored["input_shape"]
    method = create_method(
        config, (channels, height, width), len(stored["class_names"])
    )
    cost = complexity_of(method.spec)
    binary = method.binary
    rounds_seen, accuracies, totals, total = [], [], [], 0
    for metrics in rounds:
        total += metrics.bytes_up + metrics.bytes_down
        if metrics.val_accuracy is not None:
            rounds_seen.append(metrics.round)
            accuracies.append(metrics.val_accuracy)
            totals.append(total)
    return RunFigures(
        name=path.resolve().name,
        method=config.method,
        binary=binary,
        model=config.model,
        dataset=config.dataset,
        partition=config.partition,
        rounds=summary.rounds,
        test_accuracy=summary.test_accuracy,
        test_images=sum(map(sum, summary.test_confusion)),
        ptb_test_accuracy=summary.variants.get("ptb"),
        best_round=summary.best_round,
        bytes_up=sum(metrics.bytes_up for metrics in rounds),
        bytes_up_nominal=sum(metrics.bytes_up_nominal or 0 for metrics in rounds),
        bytes_down=sum(metrics.bytes_down for metrics in rounds),
        bytes_down_nominal=sum(metrics.bytes_down_nominal or 0 for metrics in rounds),
        bits_up=rounds[-1].bits_up if rounds else None,
        bits_down=rounds[-1].bits_down if rounds else None,
        flops=cost.flops_fedbnn_paper if binary else cost.flops_real,
        float_flops=cost.flops_left if binary else cost.flops_real + cost.flops_head,
        one_bit_ops=cost.binary_ops if binary else 0,
        memory_mb=(
            cost.memory_fedbnn_paper_mb
            if binary
            else cost.memory_real_mb + 4e-6 * method.paper_memory_extra()
        ),
        memory_measured_mb=_stored_mb(summary, cost) if binary else cost.memory_real_mb,
        seconds=summary.seconds,
        seconds_per_round=sum(metrics.total_seconds for metrics in rounds)
        / max(len(rounds), 1),
        rounds_seen=tuple(rounds_seen),
        val_accuracy=tuple(accuracies),
        total_bytes=tuple(totals),
    )


def common_target(runs: Sequence[RunFigures]) -> float:
    """Return the highest validation accuracy that every run has reached."""
    return min(max(run.val_accuracy, default=0.0) for run in runs)


def bytes_to(run: RunFigures, target: float) -> int | None:
    """Return the bytes up and down until a validation accuracy was reached.

    Only evaluated rounds count; None if none of them reached it.
    """
    for accuracy, total in zip(run.val_accuracy, run.total_bytes, strict=True):
        if accuracy >= target:
            return total
    return None


def gaps(runs: Sequence[RunFigures]) -> list[tuple[float, float]]:
    """Return each run's gap to the best one in points, and what is noise.

    The noise is twice the standard error of the difference of two accuracies on the
    test images, sqrt(a(1-a)/n + b(1-b)/m). A gap within it says nothing, and even one
    beyond it is of one seed: repeat short runs with several.
    """
    best = max(runs, key=lambda run: run.test_accuracy)

    def variance(run: RunFigures) -> float:
        return run.test_accuracy * (1 - run.test_accuracy) / max(run.test_images, 1)

    return [
        (
            100 * (best.test_accuracy - run.test_accuracy),
            0.0 if run is best else 200 * math.sqrt(variance(run) + variance(best)),
        )
        for run in runs
    ]


def different_data(runs: Sequence[RunFigures]) -> list[str]:
    """Return in what the runs' data differs: then a gap is not the methods' alone."""
    keys = ("dataset", "partition", "test_images")
    return [key for key in keys if len({getattr(run, key) for run in runs}) > 1]


def as_csv(runs: Sequence[RunFigures]) -> str:
    """Return one line per run with every figure but the curves."""
    curves = ("rounds_seen", "val_accuracy", "total_bytes")
    names = [name for name in RunFigures.__dataclass_fields__ if name not in curves]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(asdict(run) for run in runs)
    return text.getvalue()


def _stored_mb(summary: Summary, cost: Complexity) -> float:
    """Return the size of the packed file; counted for a run that does not say it."""
    if summary.one_bit_bytes is None:
        return cost.memory_fedbnn_honest_mb
    return 1e-6 * summary.one_bit_bytes

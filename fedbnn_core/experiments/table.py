"""A recipe's finished runs as table rows, ours beside the paper's figures."""

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedbnn_core.config import Value
from fedbnn_core.data.registry import DATASETS
from fedbnn_core.experiments.recipes import SCALES, Recipe, Row
from fedbnn_core.experiments.runs import identity, is_finished, stored_identity
from fedbnn_core.runs.directory import RunDirectory

__all__ = ["ResultRow", "as_csv", "as_markdown", "collect"]


@dataclass(frozen=True)
class ResultRow:
    """One row of a recipe at one scale, over all its seeds.

    Accuracies are percent on the test half; a spread is the sample standard deviation
    over seeds and None for a single one. Traffic is that of all clients of one round.
    """

    experiment: str
    scale: str
    row: str
    is_ablation: bool
    rounds: int
    seeds: int
    train_images: int | None
    """What the runs trained on; None if they did not store it."""
    full_train_images: int | None
    """What the published dataset has; None for one's own."""
    accuracy: float
    accuracy_spread: float | None
    paper_accuracy: float | None
    binarized: float | None
    binarized_spread: float | None
    paper_binarized: float | None
    bytes_up: float
    bytes_up_nominal: float
    bytes_down: float
    bytes_down_nominal: float
    seconds_per_round: float

    @property
    def is_part_of_the_data(self) -> bool:
        """Return whether a run of the paper's scale trained on other data than that."""
        known = self.train_images is not None and self.full_train_images is not None
        differs = known and self.train_images != self.full_train_images
        return self.scale == "paper" and differs


def collect(
    recipe: Recipe,
    runs_folder: Path,
    *,
    scales: Sequence[str] = SCALES,
    overrides: Mapping[str, Value] | None = None,
) -> list[ResultRow]:
    """Return the rows that have at least one finished run.

    A run counts if its whole config is the recipe's (with ``overrides``), whatever its
    seed: what was run with other settings never shows up as one of the scales.
    """
    rows = []
    for scale in scales:
        if scale not in recipe.scales:
            continue
        folder = runs_folder / recipe.name / scale
        runs: list[tuple[dict[str, object], RunDirectory]] = []
        for path in sorted(folder.glob("*/summary.json")):
            directory = RunDirectory(path.parent)
            found = stored_identity(directory)
            if is_finished(directory) and found is not None:
                runs.append((found, directory))
        clients = recipe.scale(scale).clients
        for row in recipe.rows:
            config = {**recipe.run_config(row, scale, seed=0), **(overrides or {})}
            wanted = identity(config, clients) | {"seed": None}
            # A run repeated with the same seed counts once, the newest.
            by_seed = {
                found["seed"]: directory
                for found, directory in runs
                if found | {"seed": None} == wanted
            }
            if by_seed:
                rows.append(_result(recipe, row, scale, list(by_seed.values())))
    return rows


def _result(
    recipe: Recipe, row: Row, scale: str, runs: Sequence[RunDirectory]
) -> ResultRow:
    summaries = [summary for run in runs if (summary := run.read_summary())]
    rounds = [metrics for run in runs for metrics in run.read_metrics()]
    accuracies = [100 * (summary.test_accuracy or 0.0) for summary in summaries]
    published = row.published
    is_binary = summaries[0].one_bit_bytes is not None
    # A 1-bit method is binarized already.
    binarized = (
        accuracies
        if is_binary
        else [100 * s.variants["ptb"] for s in summaries if "ptb" in s.variants]
    )
    stored = [run.read_json("config.json") for run in runs]
    images = [one["train_images"] for one in stored if "train_images" in one]
    dataset = DATASETS.get(stored[0]["config"]["dataset"])
    return ResultRow(
        experiment=recipe.name,
        scale=scale,
        row=row.name,
        is_ablation=row.is_ablation,
        rounds=summaries[0].rounds,
        seeds=len(runs),
        train_images=min(images, default=None),
        full_train_images=dataset.num_train if dataset else None,
        accuracy=statistics.fmean(accuracies),
        accuracy_spread=_spread(accuracies),
        paper_accuracy=published.accuracy,
        binarized=statistics.fmean(binarized) if binarized else None,
        binarized_spread=_spread(binarized),
        paper_binarized=published.accuracy if is_binary else published.binarized,
        bytes_up=statistics.fmean(m.bytes_up for m in rounds),
        bytes_up_nominal=statistics.fmean(m.bytes_up_nominal or 0 for m in rounds),
        bytes_down=statistics.fmean(m.bytes_down for m in rounds),
        bytes_down_nominal=statistics.fmean(m.bytes_down_nominal or 0 for m in rounds),
        seconds_per_round=statistics.fmean(m.total_seconds for m in rounds),
    )


def _spread(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def as_csv(rows: Iterable[ResultRow]) -> str:
    """Return the rows with every figure in full; an absent one is empty."""
    text = io.StringIO()
    names = list(ResultRow.__dataclass_fields__)
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


_HEADER = (
    "experiment",
    "scale",
    "row",
    "rounds",
    "seeds",
    "train images",
    "accuracy %",
    "paper",
    "binarized %",
    "paper",
    "MB up / round (nominal)",
    "MB down / round (nominal)",
    "s / round",
)

_LEGEND = """\
accuracy: test half, best round by the validation half; mean ± standard deviation over
seeds. binarized: after post-training binarization (l2); a 1-bit model's equals its
accuracy. paper: its full training, so compare it with the scale `paper` only. MB: 10^6
bytes of all clients of a round as they travelled; in brackets as papers count them.
"""


_PART = """\
*: not the whole training set, so not comparable with the paper's figure.
"""


def as_markdown(rows: Sequence[ResultRow]) -> str:
    """Return the rows as a Markdown table with a line on what the columns mean."""
    cells = [
        (
            row.experiment,
            row.scale,
            row.row,
            str(row.rounds),
            str(row.seeds),
            _images(row),
            _mean(row.accuracy, row.accuracy_spread),
            _mean(row.paper_accuracy, None),
            _mean(row.binarized, row.binarized_spread),
            _mean(row.paper_binarized, None),
            _megabytes(row.bytes_up, row.bytes_up_nominal),
            _megabytes(row.bytes_down, row.bytes_down_nominal),
            f"{row.seconds_per_round:.1f}",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(_HEADER, *cells, strict=True)]
    right = [index >= 3 for index in range(len(_HEADER))]

    def line(values: Sequence[str]) -> str:
        padded = [
            value.rjust(width) if is_right else value.ljust(width)
            for value, width, is_right in zip(values, widths, right, strict=True)
        ]
        return f"| {' | '.join(padded)} |"

    legend = _LEGEND
    if any(row.is_part_of_the_data for row in rows):
        legend += _PART
    rule = [
        "-" * (width - 1) + ":" if is_right else "-" * width
        for width, is_right in zip(widths, right, strict=True)
    ]
    return "\n".join([line(_HEADER), line(rule), *map(line, cells), "", legend])


def _mean(value: float | None, spread: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if spread is None else f"{value:.2f} ± {spread:.2f}"


def _images(row: ResultRow) -> str:
    count = "" if row.train_images is None else str(row.train_images)
    return f"{count}*" if row.is_part_of_the_data else count


def _megabytes(actual: float, nominal: float) -> str:
    return f"{actual / 1e6:.3f} ({nominal / 1e6:.3f})"

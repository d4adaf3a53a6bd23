"""`fedbnn complexity`: parameters, FLOPs, memory and rotation overhead."""

import json
from typing import TYPE_CHECKING, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from fedbnn_core.errors import ConfigError

if TYPE_CHECKING:
    from fedbnn_core.complexity import Complexity

__all__ = ["complexity"]

JSON_FIGURES = (
    "w_params",
    "r_params",
    "overhead_percent",
    "flops_real",
    "flops_fedbnn_paper",
    "memory_real_mb",
    "memory_fedbnn_paper_mb",
    "memory_fedbnn_honest_mb",
)


class Note(NamedTuple):
    """A figure that the paper prints differently, and why."""

    figure: str
    text: str


# Where the paper's tables and its own counting rules disagree (baselines.md 5.2).
NOTES: dict[tuple[str, str], tuple[Note, ...]] = {
    ("cnn4", "svhn"): (
        Note("flops", "the paper prints 3.00e7 real and .0498 MB: truncated digits."),
    ),
    ("resnet10", "cifar10"): (
        Note(
            "flops",
            "the paper prints 4.40e8 real, 1.11e7 FedBNN. Its figures result when one "
            "of the 3x3 convolutions is counted as 1x1: 4.397e8, 1.106e7.",
        ),
    ),
    ("resnet18", "femnist"): (
        Note(
            "memory",
            "the paper prints 45.090 and 1.41 MB, the values of the 200-class "
            "network; FEMNIST has 62 classes.",
        ),
    ),
    ("convnext-tiny", "cifar10"): (
        Note(
            "flops",
            "the paper prints 2.98e9 real, 6.07e7 FedBNN. Its figures result when one "
            "pointwise convolution is counted twice: 2.985e9, 6.074e7.",
        ),
    ),
}


def complexity(
    model: str = typer.Option("", help="Only this model, for example resnet10."),
    dataset: str = typer.Option("", help="Only this dataset, for example cifar10."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of tables."),
) -> None:
    """Show what the networks cost, by the paper's rules and honestly.

    Without options: the six model/dataset pairs of the paper. With both options any
    pair is counted, also one that the paper does not have.
    """
    from fedbnn_core.complexity import complexity_of, spec_for

    pairs = _select(model, dataset)
    counted = {pair: complexity_of(spec_for(*pair)) for pair in pairs}
    if as_json:
        rows = [
            {"model": name, "dataset": data}
            | {figure: getattr(figures, figure) for figure in JSON_FIGURES}
            for (name, data), figures in counted.items()
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    console = Console()
    footnotes: list[str] = []
    console.print(_memory_table(counted, footnotes))
    console.print(_flops_table(counted, footnotes))
    for footnote in footnotes:
        console.print(footnote, highlight=False)


def _select(model: str, dataset: str) -> list[tuple[str, str]]:
    """Return the wanted (model, dataset) pairs; an unknown name is an error."""
    from fedbnn_core.complexity import INPUTS, ROWS
    from fedbnn_core.models import MODELS

    for kind, name, known in (("model", model, MODELS), ("dataset", dataset, INPUTS)):
        if name and name not in known:
            choices = ", ".join(known)
            raise ConfigError(f"unknown {kind} {name!r}; choose one of {choices}")
    if model and dataset:
        return [(model, dataset)]
    pairs = [row for row in ROWS if model in ("", row[0]) and dataset in ("", row[1])]
    if not pairs:
        raise ConfigError(
            f"the paper has no row for dataset {dataset!r}; "
            f"add --model with one of {', '.join(MODELS)}"
        )
    return pairs


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("model")
    table.add_column("dataset")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _mark(pair: tuple[str, str], figure: str, footnotes: list[str]) -> str:
    """Return the footnote mark of a figure, adding its text to ``footnotes``."""
    texts = [note.text for note in NOTES.get(pair, ()) if note.figure == figure]
    if not texts:
        return ""
    letter = chr(ord("a") + len(footnotes))
    footnotes.append(f"{letter}) {pair[0]}, {pair[1]}: {' '.join(texts)}")
    return f" {letter})"


def _memory_table(
    counted: "dict[tuple[str, str], Complexity]", footnotes: list[str]
) -> Table:
    table = _table(
        "Parameters and memory (MB = 10^6 bytes)",
        "w",
        "R1, R2",
        "R/w %",
        "float32",
        "paper",
        "honest",
    )
    for pair, figures in counted.items():
        table.add_row(
            *pair,
            f"{figures.w_params:,}",
            f"{figures.r_params:,}",
            f"{figures.overhead_percent:.2f}",
            f"{figures.memory_real_mb:.4f}" + _mark(pair, "memory", footnotes),
            f"{figures.memory_fedbnn_paper_mb:.4f}",
            f"{figures.memory_fedbnn_honest_mb:.4f}",
        )
    table.caption = (
        "paper: float32 / 32. honest: 1 bit per binary weight, 4 bytes for the rest."
    )
    return table


def _flops_table(
    counted: "dict[tuple[str, str], Complexity]", footnotes: list[str]
) -> Table:
    table = _table(
        "Operations per image", "float32", "paper", "honest float", "honest 1-bit"
    )
    for pair, figures in counted.items():
        table.add_row(
            *pair,
            f"{figures.flops_real:.3e}" + _mark(pair, "flops", footnotes),
            f"{figures.flops_fedbnn_paper:.3e}",
            f"{figures.flops_left:.3e}",
            f"{figures.binary_ops:.3e}",
        )
    table.caption = (
        "float32, paper: convolutions only, binary ones / 58. honest: float operations "
        "of stem and head, and operations on single bits."
    )
    return table

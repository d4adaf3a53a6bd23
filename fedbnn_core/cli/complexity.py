"""`fedbnn complexity`: parameters, FLOPs, memory and rotation overhead."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedbnn_core.cli.options import AsJson
from fedbnn_core.errors import ConfigError

if TYPE_CHECKING:
    from fedbnn_core.networks import ModelSpec
    from fedbnn_core.networks.complexity import Complexity

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
_Format = Callable[[Any], str]


def _power(value: float) -> str:
    """Return a number as 5.069e8."""
    return f"{value:.3e}".replace("e+0", "e")


_PARAMETERS, _MEMORY = "Parameters", "Memory in MB (10^6 bytes)"
_OPERATIONS = "Operations per image"

# Title, legend, and for each column the figure and its format.
_TABLES: tuple[tuple[str, str, dict[str, tuple[str, _Format]]], ...] = (
    (
        _PARAMETERS,
        "w: weights of the binary convolutions. R1, R2: numbers in their rotations,\n"
        "which training needs and the finished model does not.",
        {
            "w": ("w_params", "{:,}".format),
            "R1, R2": ("r_params", "{:,}".format),
            "overhead %": ("overhead_percent", "{:.2f}".format),
        },
    ),
    (
        _MEMORY,
        "paper: float32 / 32. honest: 1 bit per binary weight, 4 bytes for the rest.",
        {
            "float32": ("memory_real_mb", "{:.4f}".format),
            "1-bit, paper": ("memory_fedbnn_paper_mb", "{:.4f}".format),
            "1-bit, honest": ("memory_fedbnn_honest_mb", "{:.4f}".format),
        },
    ),
    (
        _OPERATIONS,
        "paper: convolutions only, binary ones / 58. honest: the float operations\n"
        "left in stem and head, plus operations on single bits.",
        {
            "float32": ("flops_real", _power),
            "paper": ("flops_fedbnn_paper", _power),
            "honest float": ("flops_left", _power),
            "+ 1-bit": ("binary_ops", _power),
        },
    ),
)

# Where the paper's tables and its own counting rules disagree.
_NOTES = {
    (_MEMORY, "cnn4", "svhn"): "the paper prints .0498 for 1-bit: truncated.",
    (_MEMORY, "resnet18", "femnist"): (
        "the paper prints 45.090 and 1.41, the values of the 200-class network; "
        "FEMNIST has 62 classes."
    ),
    (_OPERATIONS, "cnn4", "svhn"): "the paper prints 3.00e7 for float32: truncated.",
    (_OPERATIONS, "resnet10", "cifar10"): (
        "the paper prints 4.40e8 and 1.11e7. Counting one 3x3 convolution as 1x1 "
        "gives its figures (4.397e8, 1.106e7)."
    ),
    (_OPERATIONS, "convnext-tiny", "cifar10"): (
        "the paper prints 2.98e9 and 6.07e7. Counting one pointwise convolution twice "
        "gives its figures (2.985e9, 6.074e7)."
    ),
}


def complexity(
    model: str = typer.Option("", help="Only this model, for example resnet10."),
    dataset: str = typer.Option("", help="Only this dataset, for example cifar10."),
    as_json: AsJson = False,
) -> None:
    """Show what the networks cost, by the paper's rules and honestly.

    Without options: the six model/dataset pairs of the paper. With both options any
    pair is counted, also one that the paper does not have.
    """
    from fedbnn_core.networks.complexity import complexity_of

    pairs = _select(model, dataset)
    counted = {pair: complexity_of(_spec(*pair)) for pair in pairs}
    if as_json:
        rows = [
            {"model": name, "dataset": data}
            | {figure: getattr(figures, figure) for figure in JSON_FIGURES}
            for (name, data), figures in counted.items()
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    _print_tables(counted)


def _select(model: str, dataset: str) -> list[tuple[str, str]]:
    """Return the wanted (model, dataset) pairs; an unknown name is an error."""
    from fedbnn_core.networks import MODELS
    from fedbnn_core.networks.complexity import INPUTS, ROWS

    inputs = _inputs()
    for kind, name, known in (("model", model, MODELS), ("dataset", dataset, inputs)):
        if name and name not in known:
            choices = ", ".join(known)
            raise ConfigError(f"unknown {kind} {name!r}; choose one of {choices}")
    if model and dataset:
        return [(model, dataset)]
    if dataset and dataset not in INPUTS:
        # Such as fmnist-mini, which is like one of the paper's datasets.
        same = [row for row in ROWS if inputs[row[1]] == inputs[dataset]]
        pairs = [(name, dataset) for name, _ in same]
    else:
        pairs = [
            row for row in ROWS if model in ("", row[0]) and dataset in ("", row[1])
        ]
    if not pairs:
        raise ConfigError(
            f"the paper has no row for dataset {dataset!r}; "
            f"add --model with one of {', '.join(MODELS)}"
        )
    return pairs


def _inputs() -> dict[str, tuple[tuple[int, int, int], int]]:
    """Return input shape and classes of the paper's and of all other datasets."""
    from fedbnn_core.data.registry import DATASETS
    from fedbnn_core.networks.complexity import INPUTS

    others = {
        name: (spec.input_shape, spec.num_classes) for name, spec in DATASETS.items()
    }
    return others | INPUTS


def _spec(model: str, dataset: str) -> "ModelSpec":
    from fedbnn_core.networks import ModelSpec

    return ModelSpec(model, *_inputs()[dataset])


def _print_tables(counted: "dict[tuple[str, str], Complexity]") -> None:
    """Print three tables that fit 80 columns, then the notes they refer to."""
    console = Console()
    notes: list[str] = []
    for title, legend, columns in _TABLES:
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
        for name in ("model", "dataset"):
            table.add_column(name, no_wrap=True)
        for name in columns:
            table.add_column(name, justify="right", no_wrap=True)
        for pair, figures in counted.items():
            cells = [
                form(getattr(figures, figure)) for figure, form in columns.values()
            ]
            model, dataset = pair
            table.add_row(model, dataset + _mark(pair, title, notes), *cells)
        console.print(table)
        console.print(legend + "\n", highlight=False)
    for note in notes:
        console.print(note, highlight=False)


def _mark(pair: tuple[str, str], title: str, notes: list[str]) -> str:
    """Return the mark of a row's note, adding its text to ``notes``."""
    if (title, *pair) not in _NOTES:
        return ""
    letter = "abcdefgh"[len(notes)]
    notes.append(f"({letter}) {' '.join(pair)}: {_NOTES[title, *pair]}")
    return f" ({letter})"

"""`fedbnn partition`: show and draw which client holds which data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fedbnn_core.data.dataset import Labels

__all__ = ["partition"]

_MAX_ROWS = 20
_MAX_NAMED_CLASSES = 30
# Columns of the table before the classes, with their borders.
_HEAD_WIDTH = 41
_BARS = " ▁▂▃▄▅▆▇█"


def partition(
    dataset: Annotated[
        str | None,
        typer.Option(help="A name from 'fedbnn data list', folder:PATH or npz:PATH."),
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder that holds datasets.")
    ] = None,
    scheme: Annotated[
        str | None, typer.Option(help="iid, dirichlet, label-fraction or natural.")
    ] = None,
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 100,
    alpha: Annotated[
        float | None, typer.Option(help="Dirichlet: smaller is more uneven.")
    ] = None,
    label_fraction: Annotated[
        float | None, typer.Option(help="Label-fraction: a client's share of labels.")
    ] = None,
    min_size: Annotated[
        int | None, typer.Option(help="Dirichlet: fewest samples of a client.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", "--data-seed", help="The run's data-seed.")
    ] = None,
    picture: Annotated[
        Path, typer.Option(help="Where to draw it (.png, .svg or .pdf).")
    ] = Path("partition.png"),
    save: Annotated[
        Path | None, typer.Option(help="Also write the indices to this .npz.")
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show all clients.")] = False,
) -> None:
    """Show who holds what in a run: a table of clients and classes, and a picture.

    Whatever is not given is as in a run without options.
    """
    from fedbnn_core.config import RunConfig
    from fedbnn_core.data import class_counts, save_partition
    from fedbnn_core.data.loading import own_data_warnings
    from fedbnn_core.reporting.partition_plot import draw_partition
    from fedbnn_core.runs.dataset import load_run_dataset, run_partition

    given = {
        "dataset": dataset,
        "data-dir": data_dir,
        "partition": scheme,
        "dirichlet-alpha": alpha,
        "label-fraction": label_fraction,
        "min-partition-size": min_size,
        "data-seed": seed,
    }
    config = RunConfig.from_mapping(
        {key: value for key, value in given.items() if value is not None},
        complete=False,
    )
    for warning in own_data_warnings(config.dataset, config.data_dir or None):
        Console(stderr=True).print(f"warning: {warning}", markup=False, soft_wrap=True)
    data = load_run_dataset(config)
    parts = run_partition(config, data, clients)
    counts = class_counts(data.y_train, parts, data.num_classes)
    detail = {
        "dirichlet": f" (alpha {config.dirichlet_alpha:g})",
        "label-fraction": f" ({config.label_fraction:g} of the labels)",
    }.get(config.partition, "")
    title = (
        f"{config.dataset}, {config.partition}{detail}, {clients} clients, "
        f"data seed {config.data_seed}"
    )

    console = Console()
    console.print(_table(counts, title, width=console.width, show_all=show_all))
    if len(counts) > _MAX_ROWS and not show_all:
        console.print(f"... and {len(counts) - _MAX_ROWS} more clients (--all).")
    if data.num_classes <= _MAX_NAMED_CLASSES:
        names = ", ".join(f"{i} {name}" for i, name in enumerate(data.class_names))
        console.print(f"Classes: {escape(names)}.", highlight=False)
    console.print(_summary(counts), highlight=False)
    draw_partition(counts, data.class_names, title, picture)
    console.print(f"Picture: {escape(str(picture))}", soft_wrap=True)
    if save is not None:
        save_partition(save, parts)
        console.print(f"Indices: {escape(str(save))}", soft_wrap=True)


def _table(counts: "Labels", title: str, *, width: int, show_all: bool) -> Table:
    """One row per client: counts per class where they fit, else bars."""
    from fedbnn_core.data import label_entropy

    classes = counts.shape[1]
    entropy = label_entropy(counts)
    digits = len(str(max(int(counts.max()), classes - 1)))
    by_class = _HEAD_WIDTH + classes * (digits + 3) <= width
    table = Table(title=escape(title))
    for heading in ("Client", "Samples", "Labels", "Entropy"):
        table.add_column(heading, justify="right", no_wrap=True)
    if by_class:
        for label in range(classes):
            table.add_column(str(label), justify="right", no_wrap=True)
    else:
        table.add_column(f"Classes 0..{classes - 1}", overflow="fold")
    largest = max(int(counts.max()), 1)
    for client in range(len(counts) if show_all else min(len(counts), _MAX_ROWS)):
        row = counts[client]
        head = (
            str(client),
            f"{row.sum():,}",
            str((row > 0).sum()),
            f"{entropy[client]:.2f}",
        )
        if by_class:
            cells = [Text(str(n), style="" if n else "dim") for n in row]
        else:
            # Rounded up, so that a single sample still shows.
            levels = [-(-int(n) * (len(_BARS) - 1) // largest) for n in row]
            cells = [Text("".join(_BARS[level] for level in levels))]
        table.add_row(*head, *cells)
    return table


def _summary(counts: "Labels") -> str:
    import numpy as np

    from fedbnn_core.data import label_entropy

    sizes = counts.sum(axis=1)
    labels = (counts > 0).sum(axis=1)
    holders = (counts > 0).sum(axis=0)
    return (
        f"Samples per client {sizes.min():,}..{sizes.max():,}, median "
        f"{np.median(sizes):,.0f}; labels per client {labels.min()}..{labels.max()}; "
        f"clients per label {holders.min()}..{holders.max()}; mean label entropy "
        f"{label_entropy(counts).mean():.2f} of {np.log2(counts.shape[1]):.2f} bits."
    )

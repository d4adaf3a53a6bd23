"""`fedbnn data`: list, get and check datasets."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedbnn_core.cli.options import AsJson
from fedbnn_core.errors import ConfigError

if TYPE_CHECKING:
    from fedbnn_core.data.check import DataReport

__all__ = ["app"]

app = typer.Typer(
    help="List, get and check datasets.", no_args_is_help=True, add_completion=False
)

_MAX_LISTED = 10

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Folder that holds datasets; by default $FEDBNN_DATA or in your home.",
    ),
]


@app.command("list")
def list_datasets(
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show which datasets are here, what would be downloaded, sizes and licences."""
    from fedbnn_core.data.cache import cache_folder
    from fedbnn_core.data.loading import data_folder, find_source
    from fedbnn_core.data.registry import DATASETS

    console = Console()
    rows: list[dict[str, Any]] = []
    for spec in DATASETS.values():
        found = find_source(spec, data_dir)
        rows.append(
            {
                "name": spec.name,
                "title": spec.title,
                "classes": spec.num_classes,
                "input_shape": spec.input_shape,
                "train": spec.num_train,
                "test": spec.num_test,
                "here": str(_where(found[1])) if found else None,
                "download_bytes": spec.download_bytes,
                "terms": spec.terms,
            }
        )
    if as_json:
        console.print_json(data=rows)
        return
    table = Table("Dataset", "Images", show_lines=True)
    table.add_column("Where", overflow="fold")
    for row in rows:
        shape = "x".join(map(str, row["input_shape"]))
        table.add_row(
            f"[bold]{row['name']}[/]\n{row['title']}\n[dim]{row['terms']}[/]",
            f"{row['classes']} classes, {shape}\n{row['train']:,} + {row['test']:,}",
            _status(row),
        )
    console.print(table)
    console.print(
        "Your own images: folder:PATH (one subfolder per class; folder:PATH@40x52 "
        "resizes) or npz:PATH "
        "(x_train, y_train, x_test, y_test).",
        f"Data folder: {escape(str(data_folder(data_dir)))}",
        f"Decoded data: {escape(str(cache_folder()))} ({_cache_size()})",
        sep="\n",
        highlight=False,
        soft_wrap=True,
    )


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="A name from 'fedbnn data list'.")],
    data_dir: DataDir = None,
) -> None:
    """Download a dataset; an interrupted download goes on where it stopped."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from fedbnn_core.data.download import get_dataset
    from fedbnn_core.data.loading import load_dataset

    console = Console()
    tasks: dict[str, TaskID] = {}
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as bars:

        def show(file: str, present: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(escape(file), total=None)
            bars.update(tasks[file], completed=present, total=total or None)

        files = get_dataset(name, data_dir, show)
    with console.status("Decoding ..."):
        dataset = load_dataset(name, data_dir)
    console.print(
        f"[bold]{name}[/] is ready: {len(dataset.y_train):,} training and "
        f"{len(dataset.y_test):,} test images of {dataset.num_classes} classes in "
        f"{escape(str(_where(files)))}",
        highlight=False,
        soft_wrap=True,
    )


@app.command("check")
def check(
    path: Annotated[
        str,
        typer.Argument(
            help="A folder of images, one subfolder per class, or .npz; folder:PATH "
            "and npz:PATH as in a run work, too."
        ),
    ],
    size: Annotated[
        str | None, typer.Option(help="Height and width to resize to, such as 40x52.")
    ] = None,
) -> None:
    """Look over your own images; exit code 1 if something should be put right."""
    from fedbnn_core.data.check import check_data
    from fedbnn_core.data.loading import split_size

    console = Console()
    image_size = _parse_size(size)
    if path.startswith("folder:"):
        path, named_size = split_size(path.removeprefix("folder:"))
        image_size = image_size or named_size
    with console.status("Reading images ..."):
        report = check_data(Path(path.removeprefix("npz:")).expanduser(), image_size)
    _print_report(console, report)
    if report.problems:
        raise typer.Exit(1)


def _where(files: Sequence[Path]) -> Path:
    """Name the folder that holds all files, or the only file."""
    return Path(files[0] if len(files) == 1 else os.path.commonpath(files))


def _status(row: dict[str, Any]) -> str:
    if row["here"]:
        return f"[green]here[/]\n{escape(row['here'])}"
    if row["download_bytes"]:
        return f"download, {row['download_bytes'] / 1e6:,.0f} MB"
    return "by hand; 'get' says how"


def _cache_size() -> str:
    from fedbnn_core.data.cache import cache_folder

    files = cache_folder().glob("*/*.npy")
    return f"{sum(file.stat().st_size for file in files) / 1e6:,.0f} MB"


def _parse_size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise ConfigError(f"Expected a size such as 40x52, but got {text!r}.")
    return int(height), int(width)


def _print_report(console: Console, report: "DataReport") -> None:
    table = Table("Class", title="Images per class")
    table.add_column("Train", justify="right")
    table.add_column("Test", justify="right")
    rows = zip(report.class_names, report.train_counts, report.test_counts, strict=True)
    for name, train, test in rows:
        table.add_row(escape(name), f"{train:,}", f"{test:,}")
    table.add_section()
    table.add_row(
        "all", f"{report.train_counts.sum():,}", f"{report.test_counts.sum():,}"
    )
    console.print(table)
    if not report.has_own_test_set:
        console.print("No test set: a fifth of each class is held out as test set.")
    channels, height, width = report.input_shape
    common = sorted(report.sizes.items(), key=lambda item: -item[1])
    sizes = ", ".join(f"{h}x{w} ({count:,})" for (h, w), count in common[:_MAX_LISTED])
    more = f" and {len(common) - _MAX_LISTED} more" if len(common) > _MAX_LISTED else ""
    console.print(
        f"Sizes (height x width): {sizes}{more}",
        f"Images are used as {channels} x {height} x {width} "
        f"({'grey' if channels == 1 else 'colour'}).",
        sep="\n",
        highlight=False,
    )
    _print_some(console, "Cannot be read", list(report.unreadable))
    _print_some(console, "Format is not read", list(report.skipped))
    _print_some(
        console, "In train and in test", [f"{a} = {b}" for a, b in report.leaks]
    )
    _print_some(
        console,
        "Same image, two classes",
        [f"{a} = {b}" for a, b in report.contradictions],
    )
    if not report.problems:
        console.print("[green]Nothing to put right.[/]")
    for problem in report.problems:
        console.print(f"[yellow]problem:[/] {escape(problem)}", highlight=False)


def _print_some(console: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    console.print(f"[bold]{title}[/] ({len(lines)}):", highlight=False)
    for line in lines[:_MAX_LISTED]:
        console.print(f"  {escape(line)}", highlight=False, soft_wrap=True)
    if len(lines) > _MAX_LISTED:
        console.print(f"  ... and {len(lines) - _MAX_LISTED} more")

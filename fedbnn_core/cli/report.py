"""`fedbnn report`: write a run's HTML report."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

__all__ = ["report"]


def report(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(help="The run to show, then runs to compare it with."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where to write it [default: RUN_DIR/report.html]."
        ),
    ] = None,
    show: Annotated[
        bool, typer.Option("--open", help="Open it in the browser.")
    ] = False,
) -> None:
    """Write one self-contained HTML file about a run."""
    from fedbnn_core.reporting.report import write_report

    path = write_report(run_dirs, output).resolve()
    size = path.stat().st_size
    Console(highlight=False).print(
        f"Report: {escape(str(path))} ({size / 1e6:.2f} MB)", soft_wrap=True
    )
    if show:
        typer.launch(path.as_uri())

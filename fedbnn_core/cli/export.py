"""`fedbnn export`: write a run's model as a packed file or as a C program."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedbnn_core.errors import ConfigError

__all__ = ["export"]


def export(
    source: Annotated[
        Path, typer.Argument(help="Folder of a run, or an .fbnn file (with --c).")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write [RUN_DIR/model.fbnn]."),
    ] = None,
    c: Annotated[
        Path | None,
        typer.Option("--c", help="Also write a C11 program into this folder."),
    ] = None,
    model: Annotated[
        str, typer.Option(help="best: as evaluated. final: signs of the last weights.")
    ] = "best",
    int8_head: Annotated[
        bool, typer.Option("--int8-head", help="Store the classifier as int8.")
    ] = False,
) -> None:
    """Write the 1-bit model of a run as a packed .fbnn file."""
    from fedbnn_core.packed.c_program import write_c_program
    from fedbnn_core.packed.format import read_file

    console = Console(highlight=False, soft_wrap=True)
    if source.is_file():
        if c is None or output is not None or int8_head:
            raise ConfigError(
                f"{source} is a file already; give --c FOLDER to make a C program of "
                "it, or the folder of a run to export that"
            )
        path = source
    else:
        from fedbnn_core.run_export import export_run

        path = output or source / "model.fbnn"
        size = export_run(source, path, which=model, int8_head=int8_head)
        console.print(f"Wrote {escape(str(path))} ({size:,} bytes).")
    if c is not None:
        files = write_c_program(read_file(path), c)
        console.print(
            f"Wrote {len(files)} files of a C program to {escape(str(c))}; "
            "build it there with make."
        )

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
        typer.Option(
            "--output",
            "-o",
            help="File to write [RUN_DIR/model.fbnn, model-final.fbnn, ...].",
        ),
    ] = None,
    c: Annotated[
        Path | None,
        typer.Option("--c", help="Also write a C11 program into this folder."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="best: as evaluated. final: signs of the last weights."),
    ] = None,
    int8_head: Annotated[
        bool, typer.Option("--int8-head", help="Store the classifier as int8.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            help="With --c, a project for a microcontroller instead: cortex-m, riscv, "
            "or bare for any C11 compiler."
        ),
    ] = None,
) -> None:
    """Write the 1-bit model of a run as a packed .fbnn file."""
    from fedbnn_core.packed.c_program import PROGRAM_FILES, write_c_program
    from fedbnn_core.packed.decode import read_file

    console = Console(highlight=False, soft_wrap=True)
    if target is not None:
        from fedbnn_core.packed.mcu.project import user_files

        user_files(target)  # an unknown target is an error before anything is written
        if c is None:
            raise ConfigError(
                f"--target {target} asks for a project; give its folder with --c FOLDER"
            )
    if source.is_file():
        if c is None or output is not None or int8_head or model is not None:
            raise ConfigError(
                f"{source} is a file already; give --c FOLDER alone to make a C "
                "program of it, or the folder of a run to export that"
            )
        data = read_file(source)
    else:
        from fedbnn_core.export.pack import write_packed
        from fedbnn_core.runs.model import pack_run

        data = pack_run(source, which=model or "best", int8_head=int8_head)
        path = output or source / _file_name(model or "best", int8_head)
        # Who asks for a C program does not ask to replace the run's model.
        if output is not None or c is None or not path.exists():
            write_packed(data, path)
            console.print(f"Wrote {escape(str(path))} ({len(data):,} bytes).")
    if c is not None and target is not None:
        _write_project(data, c, target, console)
    elif c is not None:
        files = write_c_program(data, c)
        console.print(
            f"Wrote {len(files)} files of a C program to {escape(str(c))}; "
            "build it there with make."
        )
        packed = source if source.is_file() else source / "model.fbnn"
        console.print(
            "It classifies raw pixels; to make such a file of an image: fedbnn raw "
            f"{escape(str(packed))} IMAGE"
        )
        for name in PROGRAM_FILES:
            if c / name not in files:
                console.print(f"Kept your {name}; remove it to get the original.")


def _write_project(data: bytes, folder: Path, target: str, console: Console) -> None:
    """Write a project for a microcontroller and say what it needs there."""
    from fedbnn_core.cli.fit_check import size_lines
    from fedbnn_core.packed.decode import decode
    from fedbnn_core.packed.mcu.project import user_files, write_project
    from fedbnn_core.packed.mcu.sizes import chip_sizes

    sizes = chip_sizes(decode(data))
    files = write_project(data, folder, target)
    console.print(f"Wrote {len(files)} files for {target} to {escape(str(folder))}:")
    for line in size_lines(sizes):
        console.print(f"  {line}", markup=False)
    emulated = "run" if target == "bare" else "qemu"
    console.print(f"There: make, make flash-size, make {emulated}.")
    for name in user_files(target):
        if folder / name not in files:
            console.print(f"Kept your {name}; remove it to get the original.")


def _file_name(model: str, int8_head: bool) -> str:
    """Return the default name; model.fbnn is always the best model, as evaluated."""
    variant = "" if model == "best" else f"-{model}"
    return f"model{variant}{'-int8' if int8_head else ''}.fbnn"

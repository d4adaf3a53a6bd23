"""Options that several commands share, so that they read alike everywhere."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "AsJson",
    "ConfigKeys",
    "ControlPort",
    "FleetFolder",
    "Kernel",
    "PackedFile",
    "Threads",
    "Verbose",
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
ConfigKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        help="A config key, as KEY=VALUE; repeatable. 'fedbnn config' shows them.",
    ),
]
ControlPort = Annotated[
    str, typer.Option("--control", help="The server's control port.")
]
FleetFolder = Annotated[
    Path | None,
    typer.Option(
        "--fleet",
        help="The fleet's folder; by default $FEDBNN_FLEET or ~/.config/fedbnn/fleet.",
    ),
]
Kernel = Annotated[str, typer.Option("--kernel", help="Kernel to run on.")]
PackedFile = Annotated[Path, typer.Argument(help="An .fbnn file.")]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Threads to use.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Show all of Flower's output.")
]

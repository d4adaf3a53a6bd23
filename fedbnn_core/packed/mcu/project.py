"""Write a packed network as a project directory for a microcontroller."""

import shutil
from pathlib import Path

from fedbnn_core.errors import FedBNNError
from fedbnn_core.packed.decode import decode
from fedbnn_core.packed.graph import Graph
from fedbnn_core.packed.mcu.plan import Plan, plan_network
from fedbnn_core.packed.mcu.source import network_source

__all__ = ["NETWORK_FILES", "TARGETS", "user_files", "write_project"]

TARGETS = ("cortex-m", "riscv", "bare")
NETWORK_FILES = ("fbnn.h", "fbnn.c", "network.c")
"""All that another project needs."""

_HERE = Path(__file__).parent
_PLACE = "/* The network of this export goes here. */\n"


def user_files(target: str) -> dict[str, Path]:
    """Return the files that a user may change, by name; they are never replaced.

    Raises
    ------
    FedBNNError
        There is no such target.
    """
    if target not in TARGETS:
        raise FedBNNError(
            f"unknown target {target!r}; choose one of {', '.join(TARGETS)}"
        )
    common = [_HERE / "project" / name for name in ("main.c", "board.h")]
    own = sorted((_HERE / "project" / target).iterdir())
    return {path.name: path for path in (*common, *own)}


def write_project(data: bytes, folder: str | Path, target: str) -> list[Path]:
    """Write network, kernels, a program and a Makefile into a folder.

    Parameters
    ----------
    data : bytes
        An `.fbnn` file.
    folder : str or Path
        Made if absent; files of an earlier export are replaced, but for `user_files`
        that were changed since.
    target : str
        One of `TARGETS`.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    FedBNNError
        The folder cannot be written or belongs to another program, or the network has
        an operation that chips are not given.
    """
    originals = user_files(target)
    graph = decode(data)
    plan = plan_network(graph)
    texts = {
        "fbnn.h": _header(graph, plan),
        "fbnn.c": (_HERE / "device" / "fbnn.c").read_text(),
        "network.c": network_source(graph, plan),
    }
    folder = Path(folder)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_folder(folder, originals)
        for name, original in originals.items():
            copy = folder / name
            if not copy.exists() or copy.read_bytes() == original.read_bytes():
                written.append(Path(shutil.copyfile(original, copy)))
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
            written.append(folder / name)
    except OSError as error:
        raise FedBNNError(
            f"cannot write the project to {folder}: {error.strerror}; "
            "give a folder that you can write to"
        ) from error
    return written


def _check_folder(folder: Path, originals: dict[str, Path]) -> None:
    theirs = [name for name in originals if (folder / name).exists()]
    ours = (folder / "board.h").exists() and (folder / "network.c").exists()
    if theirs and not ours:
        raise FedBNNError(
            f"{folder} has a {theirs[0]} of another program, not of an earlier export "
            "for a microcontroller; give a new folder"
        )
    makefile = folder / "Makefile"
    others = [_HERE / "project" / target / "Makefile" for target in TARGETS]
    if makefile.exists():
        text = makefile.read_bytes()
        if text != originals["Makefile"].read_bytes() and any(
            text == other.read_bytes() for other in others if other.exists()
        ):
            raise FedBNNError(
                f"{folder} holds a project for another target; give a new folder"
            )


def _header(graph: Graph, plan: Plan) -> str:
    """Return `fbnn.h` with the sizes of this network."""
    height, width, channels = graph.input_shape
    sizes = {
        "HEIGHT": height,
        "WIDTH": width,
        "CHANNELS": channels,
        "CLASSES": len(graph.class_names),
        "ARENA_BYTES": plan.arena_bytes,
    }
    lines = "".join(f"#define FBNN_{name} {value}\n" for name, value in sizes.items())
    text = (_HERE / "device" / "fbnn.h").read_text()
    before, place, after = text.partition(_PLACE)
    if not place:
        raise FedBNNError("fbnn.h of this installation is damaged; install it again")
    return f"{before}/* The network of this export. */\n{lines}{after}"

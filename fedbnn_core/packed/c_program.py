"""Write a packed network as a C11 program for devices without Python."""

import shutil
from pathlib import Path

from fedbnn_core.errors import FedBNNError
from fedbnn_core.packed.decode import decode

__all__ = ["PROGRAM_FILES", "runtime_sources", "write_c_program"]

PROGRAM_FILES = ("Makefile", "main.c")
"""What a user may change; a changed one is never replaced."""

_HERE = Path(__file__).parent
_BYTES_PER_LINE = 24


def runtime_sources() -> list[Path]:
    """Return the C files of the runtime, without its Python binding."""
    files = sorted((_HERE / "csrc").glob("*.[ch]"))
    return [path for path in files if path.name != "pymodule.c"]


def write_c_program(data: bytes, folder: str | Path) -> list[Path]:
    """Write the model, the runtime, a program and a Makefile into a folder.

    Parameters
    ----------
    data : bytes
        An `.fbnn` file.
    folder : str or Path
        Made if absent; files of an earlier export are replaced, but for `PROGRAM_FILES`
        that were changed since.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    FedBNNError
        The folder cannot be written, or it belongs to another program.
    """
    graph = decode(data)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_folder(folder)
        copied = [
            *runtime_sources(),
            *(
                _HERE / "program" / name
                for name in PROGRAM_FILES
                if not _differs(_HERE / "program" / name, folder / name)
            ),
        ]
        written = [Path(shutil.copyfile(path, folder / path.name)) for path in copied]
        height, width, channels = graph.input_shape
        header = _HEADER.format(
            architecture=_comment(graph.architecture),
            height=height,
            width=width,
            channels=channels,
            classes=len(graph.class_names),
        )
        for name, text in (("network.h", header), ("network.c", _array(data))):
            path = folder / name
            path.write_text(text, encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise FedBNNError(
            f"cannot write the C program to {folder}: {error.strerror}; "
            "give a folder that you can write to"
        ) from error
    return written


def _check_folder(folder: Path) -> None:
    theirs = [name for name in PROGRAM_FILES if (folder / name).exists()]
    if theirs and not (folder / "network.h").exists():
        raise FedBNNError(
            f"{folder} has a {theirs[0]} of another program, not of an earlier export; "
            "give a new folder"
        )


def _differs(original: Path, copy: Path) -> bool:
    return copy.exists() and copy.read_bytes() != original.read_bytes()


_HEADER = """\
/* A packed 1-bit {architecture}: {height} x {width} x {channels} pixels in, \
{classes} classes out. */
#ifndef FBNN_MODEL_DATA_H
#define FBNN_MODEL_DATA_H

#include <stddef.h>

extern const unsigned char fbnn_model_data[];
extern const size_t fbnn_model_size;

#endif
"""


def _comment(text: str) -> str:
    """Return text that cannot end a C comment."""
    return "".join(c for c in text if c.isalnum() or c in "-_. ")


def _array(data: bytes) -> str:
    lines = [
        ",".join(map(str, data[begin : begin + _BYTES_PER_LINE]))
        for begin in range(0, len(data), _BYTES_PER_LINE)
    ]
    return (
        '#include "network.h"\n\n'
        f"const size_t fbnn_model_size = {len(data)};\n"
        f"const unsigned char fbnn_model_data[{len(data)}] = {{\n"
        + ",\n".join(lines)
        + "};\n"
    )

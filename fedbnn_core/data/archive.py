"""Open .npz archives so that any damage becomes one clear error."""

import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbnn_core.errors import DataError

__all__ = ["open_npz"]

_MAX_BYTES = 32 * 2**30
"""Of all members unpacked: a file of some megabytes could promise terabytes."""


@contextmanager
def open_npz(path: Path) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Open an archive whose members are read when they are asked for.

    Never unpickles: a member of Python objects is an error like any damage.
    """
    try:
        with path.open("rb") as file:
            if file.read(2) != b"PK":
                raise DataError(
                    f"{path} is not an .npz archive; write one with numpy.savez."
                )
        _check_sizes(path)
        archive = np.load(path, allow_pickle=False)
        with archive:
            yield archive
    except (
        OSError,
        EOFError,
        KeyError,
        MemoryError,
        ValueError,
        lzma.LZMAError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DataError(
            f"{path} cannot be read as .npz: {error}. Replace the file; arrays must be "
            "plain numbers or fixed-width text, not Python objects."
        ) from error


def _check_sizes(path: Path) -> None:
    """Raise `ValueError` if an archive is a bomb, before any member is decoded."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        size = sum(member.file_size for member in members)
        if size > _MAX_BYTES:
            raise ValueError(
                f"it unpacks to {size:,} bytes, at most {_MAX_BYTES:,} are read"
            )
        for member in members:
            if not member.filename.endswith(".npy"):
                continue
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                read = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                shape, _, dtype = read(file)
            # A member is never read beyond the size that the archive gives it.
            if math.prod(shape) * dtype.itemsize > member.file_size:
                raise ValueError(f"{member.filename} promises {shape} {dtype} values")

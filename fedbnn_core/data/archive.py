"""Open .npz archives so that any damage becomes one clear error."""

import lzma
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
        archive = np.load(path, allow_pickle=False)
        with archive:
            yield archive
    except (
        OSError,
        EOFError,
        KeyError,
        ValueError,
        lzma.LZMAError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DataError(
            f"{path} cannot be read as .npz: {error}. Replace the file; arrays must be "
            "plain numbers or fixed-width text, not Python objects."
        ) from error

"""The idx files of the MNIST family, plain or .gz: fmnist and emnist-letters."""

import gzip
import io
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbnn_core.errors import DataError

__all__ = ["find_files", "read_idx"]

_UINT8_CODE = 8
_MAX_BYTES = 2**30
"""The largest published file has 0.1 GB."""


def find_files(root: Path, names: tuple[str, ...]) -> list[Path] | None:
    """Find all of `names` in `root`, each plain or with .gz; None if one is missing."""
    found: list[Path] = []
    for name in names:
        candidates = [root / name, root / f"{name}.gz"]
        existing = [path for path in candidates if path.is_file()]
        if not existing:
            return None
        found.append(existing[0])
    return found


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes with any number of dimensions.

    Layout: two zero bytes, the type code 8, the number of dimensions d, then d
    big-endian 32-bit sizes, then the bytes, last dimension fastest.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _read(file, path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); get it again.") from error


def _read(file: gzip.GzipFile | io.BufferedReader, path: Path) -> NDArray[np.uint8]:
    start = file.read(4)
    if start[:3] != bytes([0, 0, _UINT8_CODE]) or len(start) < 4:
        raise DataError(f"{path} is not an idx file of unsigned bytes; get it again.")
    header = file.read(4 * start[3])
    if len(header) < 4 * start[3]:
        raise DataError(
            f"{path} promises {start[3]} dimensions but ends before; get it again."
        )
    shape: tuple[Any, ...] = tuple(
        int.from_bytes(header[at : at + 4], "big") for at in range(0, len(header), 4)
    )
    size = math.prod(shape)
    if size > _MAX_BYTES:
        raise DataError(
            f"{path} promises {size} values {shape}, at most {_MAX_BYTES} are read; "
            "get it again."
        )
    # A small .gz file can hold any number of bytes: read one more than promised.
    content = file.read(size + 1)
    if len(content) != size:
        more = " or more" if len(content) > size else ""
        raise DataError(
            f"{path} promises {size} values {shape} but holds {len(content)}{more}; "
            "get it again."
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)

"""The idx files of the MNIST family, plain or .gz: fmnist and emnist-letters."""

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbnn_core.errors import DataError

__all__ = ["find_files", "read_idx"]

_UINT8_CODE = 8


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
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); get it again.") from error
    if len(content) < 4 or content[:3] != bytes([0, 0, _UINT8_CODE]):
        raise DataError(f"{path} is not an idx file of unsigned bytes; get it again.")
    dimensions = content[3]
    header = 4 + 4 * dimensions
    shape: tuple[Any, ...] = tuple(
        int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)
    )
    if len(content) != header + math.prod(shape):
        raise DataError(
            f"{path} promises {math.prod(shape)} values {shape} but holds "
            f"{len(content) - header}; get it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)

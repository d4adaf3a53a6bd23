"""EMNIST Letters as idx files: 26 letters, upper and lower case merged."""

import string
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedbnn_core.data.cache import Allocate, Decoded
from fedbnn_core.data.dataset import Images
from fedbnn_core.data.readers.idx import find_files, read_idx
from fedbnn_core.errors import DataError

__all__ = ["CLASS_NAMES", "find", "read"]

CLASS_NAMES = tuple(string.ascii_uppercase)
_FILES = tuple(
    f"emnist-letters-{split}-{kind}-ubyte"
    for split in ("train", "test")
    for kind in ("images-idx3", "labels-idx1")
)


def find(root: Path) -> list[Path] | None:
    """Find the four idx files, plain or .gz."""
    return find_files(root, _FILES)


def read(files: Sequence[Path], allocate: Allocate) -> Decoded:
    """Read the files; images are turned upright and labels counted from 0 = A.

    The published images are stored transposed, with labels 1..26.
    """
    x_train, y_train, x_test, y_test = (read_idx(file) for file in files)
    for labels, path in ((y_train, files[1]), (y_test, files[3])):
        if labels.size and not 1 <= labels.min() <= labels.max() <= 26:
            raise DataError(f"{path} has labels outside 1..26; get the files again.")
    return Decoded(
        x_train=_upright("x_train", x_train, allocate),
        y_train=y_train.astype(np.int64) - 1,
        x_test=_upright("x_test", x_test, allocate),
        y_test=y_test.astype(np.int64) - 1,
        class_names=CLASS_NAMES,
    )


def _upright(name: str, images: Images, allocate: Allocate) -> Images:
    count, columns, rows = images.shape
    result = allocate(name, (count, 1, rows, columns))
    result[:, 0] = images.transpose(0, 2, 1)
    return result

"""SVHN, cropped digits: train_32x32.mat and test_32x32.mat."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedbnn_core.data.cache import Allocate, Decoded
from fedbnn_core.data.dataset import Images, Labels
from fedbnn_core.errors import DataError

__all__ = ["find", "read"]

_MAX_VALUES = 4 * 2**30
"""The published files have 0.2 billion."""


def find(root: Path) -> list[Path] | None:
    """Find the two MATLAB files; the `extra` split is not used."""
    files = [root / "train_32x32.mat", root / "test_32x32.mat"]
    return files if all(file.is_file() for file in files) else None


def read(files: Sequence[Path], allocate: Allocate) -> Decoded:
    """Read `X` uint8 (32, 32, 3, n) and `y` (n, 1), where 10 stands for the digit 0."""
    x_train, y_train = _read_split("x_train", files[0], allocate)
    x_test, y_test = _read_split("x_test", files[1], allocate)
    names = tuple(str(digit) for digit in range(10))
    return Decoded(x_train, y_train, x_test, y_test, class_names=names)


def _read_split(name: str, path: Path, allocate: Allocate) -> tuple[Images, Labels]:
    try:
        from scipy.io import loadmat, whosmat
    except ImportError as error:
        raise DataError(
            "SVHN's .mat files need scipy: pip install 'fedbnn[device]'."
        ) from error
    try:
        # A compressed array can be larger than its file by far.
        size = sum(math.prod(shape) for _, shape, _ in whosmat(path))
        if size > _MAX_VALUES:
            raise ValueError(f"it promises {size} values")
        content = loadmat(path, variable_names=["X", "y"])
        images, labels = content["X"], content["y"].astype(np.int64).ravel()
    except Exception as error:
        # scipy raises many kinds of errors on a damaged file.
        raise DataError(
            f"{path} cannot be read ({error!r}); get svhn again."
        ) from error
    if images.dtype != np.uint8 or images.shape != (32, 32, 3, len(labels)):
        raise DataError(
            f"{path} holds {images.dtype} {images.shape} for {len(labels)} labels, "
            "expected uint8 (32, 32, 3, n); get svhn again."
        )
    if len(labels) and not 1 <= labels.min() <= labels.max() <= 10:
        raise DataError(f"{path} has labels outside 1..10; get svhn again.")
    result = allocate(name, (len(labels), 3, 32, 32))
    result[...] = images.transpose(3, 2, 0, 1)
    return result, labels % 10

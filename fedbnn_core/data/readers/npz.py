"""Datasets in one .npz file: x_train, y_train, x_test, y_test.

Images are (n, h, w), (n, h, w, c) or (n, c, h, w), uint8 or float in [0, 1]; an axis
of 1 or 3 in the last place is taken as channels, then one in the second place.
Labels are numbers or text. Optional: `class_names`; without `x_test`, a fifth of each
class is held out. Instead of x_train, `jpeg_train` may hold encoded images end to end
(uint8) with their bounds in `off_train` (n + 1,), and likewise for the test set.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbnn_core.data.archive import open_npz
from fedbnn_core.data.cache import Allocate, Decoded
from fedbnn_core.data.dataset import Images
from fedbnn_core.data.readers.images import choose_shape, decode_images, read_headers
from fedbnn_core.data.readers.labels import number_labels
from fedbnn_core.data.readers.split import held_out
from fedbnn_core.errors import DataError

__all__ = ["find", "has_test_set", "read"]

_CHANNEL_COUNTS = (1, 3)


def find(root: Path, name: str) -> list[Path] | None:
    """Find the file of a named dataset: cifar10.npz, tiny_imagenet.npz and so on."""
    for spelling in (name, name.replace("-", "_")):
        if (file := root / f"{spelling}.npz").is_file():
            return [file]
    return None


def has_test_set(path: Path) -> bool:
    """Say whether the archive has test labels of its own."""
    with open_npz(path) as archive:
        return "y_test" in archive and len(archive["y_test"]) > 0


def read(
    files: Sequence[Path],
    allocate: Allocate,
    class_names: Sequence[str] | None = None,
) -> Decoded:
    """Read the archive.

    Parameters
    ----------
    files : sequence of Path
        The one archive.
    allocate : Allocate
        Where to put the images.
    class_names : sequence of str, optional
        Fixes classes and their order, over what the file says.
    """
    path = files[0]
    with open_npz(path) as archive:
        if class_names is None and "class_names" in archive:
            class_names = [str(name) for name in archive["class_names"]]
        y_train = _member(archive, "y_train", path)
        y_test = archive["y_test"] if "y_test" in archive else y_train[:0]
        y_train, y_test, names = number_labels(y_train, y_test, class_names, path)
        if "x_train" not in archive and "jpeg_train" in archive:
            train, test = (_encoded(archive, s, path) for s in ("train", "test"))
            shape = choose_shape(read_headers([*train, *test]))
            x_train, train_ok = decode_images("x_train", train, shape, allocate)
            x_test, test_ok = decode_images("x_test", test, shape, allocate)
            y_train, y_test = y_train[train_ok], y_test[test_ok]
        else:
            x_train = _images("x_train", _member(archive, "x_train", path), path)
            x_test = (
                _images("x_test", archive["x_test"], path)
                if "x_test" in archive
                else x_train[:0]
            )
    for split, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        if len(x) != len(y):
            raise DataError(f"{path} has {len(x)} {split} images, {len(y)} labels.")
    if x_test.shape[1:] != x_train.shape[1:]:
        raise DataError(
            f"{path} has training images {x_train.shape[1:]} but test images "
            f"{x_test.shape[1:]}; both must have one shape."
        )
    if len(y_test) == 0:
        chosen = held_out(y_train, [str(index) for index in range(len(y_train))])
        x_train, x_test = x_train[~chosen], x_train[chosen]
        y_train, y_test = y_train[~chosen], y_train[chosen]
    if len(y_train) == 0:
        raise DataError(f"{path} holds no training images.")
    return Decoded(x_train, y_train, x_test, y_test, class_names=names)


def _member(archive: Mapping[str, NDArray[Any]], key: str, path: Path) -> NDArray[Any]:
    if key not in archive:
        raise DataError(
            f"{path} has no {key!r}; expected x_train, y_train, x_test and y_test, "
            f"found {', '.join(archive) or 'nothing'}."
        )
    return archive[key]


def _images(key: str, array: NDArray[Any], path: Path) -> Images:
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in _CHANNEL_COUNTS:
        array = array.transpose(0, 3, 1, 2)
    elif array.ndim != 4 or array.shape[1] not in _CHANNEL_COUNTS:
        raise DataError(
            f"{key} of {path} has shape {array.shape}; expected (n, h, w), "
            "(n, h, w, channels) or (n, channels, h, w) with 1 or 3 channels."
        )
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    in_unit_range = array.size == 0 or (array.min() >= 0 and array.max() <= 1)
    if np.issubdtype(array.dtype, np.floating) and in_unit_range:
        scaled: Images = np.rint(array * 255).astype(np.uint8)
        return scaled
    raise DataError(
        f"{key} of {path} is {array.dtype}; expected uint8, or floats in [0, 1]."
    )


def _encoded(
    archive: Mapping[str, NDArray[Any]], split: str, path: Path
) -> list[bytes]:
    content = _member(archive, f"jpeg_{split}", path).tobytes()
    bounds = _member(archive, f"off_{split}", path).astype(np.int64)
    return [content[start:end] for start, end in pairwise(bounds)]

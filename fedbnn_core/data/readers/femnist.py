"""FEMNIST as LEAF writes it: JSON files of writers, 62 classes.

Each file maps writers to their images, 784 numbers pixel / 255 each, and labels:
digits 0..9, then upper-case letters, then lower-case letters. Images stay grey here;
the registry shows them as three equal channels.
"""

import json
import string
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedbnn_core.data.cache import Allocate, Decoded
from fedbnn_core.data.dataset import Images, Labels
from fedbnn_core.data.readers.split import held_out
from fedbnn_core.errors import DataError

__all__ = ["find", "read"]

_CLASS_NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
_PIXELS = 28 * 28
# LEAF's own share of test samples per writer.
_TEST_FRACTION = 0.1


def find(root: Path) -> list[Path] | None:
    """Find LEAF's train/*.json and test/*.json, else its undivided all_data/*.json."""
    train, test = (sorted((root / part).glob("*.json")) for part in ("train", "test"))
    if train and test:
        return [*train, *test]
    return sorted((root / "all_data").glob("*.json")) or None


def read(files: Sequence[Path], allocate: Allocate) -> Decoded:
    """Read all writers; undivided data is divided 90 : 10 within each writer."""
    parts = [_read_file(file) for file in files]
    writers = sorted({writer for _, _, names in parts for writer in names})
    ids = {writer: number for number, writer in enumerate(writers)}
    is_test_file = np.repeat(
        [file.parent.name == "test" for file in files], [len(y) for _, y, _ in parts]
    )
    images = np.concatenate([x for x, _, _ in parts])
    labels = np.concatenate([y for _, y, _ in parts])
    writer_ids = np.array([ids[w] for *_, names in parts for w in names], np.int64)
    if not is_test_file.any():
        keys = [str(index) for index in range(len(labels))]
        is_test_file = held_out(writer_ids, keys, _TEST_FRACTION)
    train, test = np.flatnonzero(~is_test_file), np.flatnonzero(is_test_file)
    x_train = allocate("x_train", (len(train), 1, 28, 28))
    np.take(images, train, axis=0, out=x_train)
    x_test = allocate("x_test", (len(test), 1, 28, 28))
    np.take(images, test, axis=0, out=x_test)
    return Decoded(
        x_train=x_train,
        y_train=labels[train],
        x_test=x_test,
        y_test=labels[test],
        class_names=_CLASS_NAMES,
        writer_ids=writer_ids[train],
    )


def _read_file(path: Path) -> tuple[Images, Labels, list[str]]:
    try:
        with path.open(encoding="utf-8") as file:
            content = json.load(file)
        images, labels, writers = [], [], []
        for writer in content["users"]:
            data = content["user_data"][writer]
            pixels = np.asarray(data["x"], dtype=np.float64).reshape(-1, _PIXELS)
            images.append(np.rint(pixels * 255).astype(np.uint8))
            labels.append(np.asarray(data["y"], dtype=np.int64))
            writers += [str(writer)] * len(pixels)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is not LEAF JSON of 28x28 images ({error!r}); make it again with "
            "LEAF's preprocess.sh."
        ) from error
    x = np.concatenate([np.empty((0, _PIXELS), np.uint8), *images])
    y = np.concatenate([np.empty(0, np.int64), *labels])
    if len(x) != len(y):
        raise DataError(f"{path} has {len(x)} images but {len(y)} labels.")
    if len(y) and not 0 <= y.min() <= y.max() < len(_CLASS_NAMES):
        raise DataError(f"{path} has labels outside 0..61.")
    return x.reshape(-1, 1, 28, 28), y, writers

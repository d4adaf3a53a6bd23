"""CIFAR-10 and CIFAR-100 as published: "python batches", that is, pickles.

A pickle can run any code when it is loaded. These are read by an unpickler that knows
nothing but numpy arrays, so that a forged file is an error and not a program.
"""

import io
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbnn_core.data.cache import Allocate, Decoded
from fedbnn_core.data.dataset import Images
from fedbnn_core.errors import DataError

__all__ = ["find_cifar10", "find_cifar100", "read_cifar10", "read_cifar100"]

_CIFAR10_FILES = (
    *(f"data_batch_{i}" for i in range(1, 6)),
    "test_batch",
    "batches.meta",
)
_CIFAR100_FILES = ("train", "test", "meta")
_SHAPE = (3, 32, 32)

# What a pickled uint8 array of any numpy version refers to.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class _ArrayUnpickler(pickle.Unpickler):
    """Loads dicts, lists, text and numpy arrays; refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        if module.endswith(".multiarray"):
            # The published files name numpy's old module, which numpy 2 deprecates.
            core = "_core" if hasattr(np, "_core") else "core"
            module = f"numpy.{core}.multiarray"
        return super().find_class(module, name)


def find_cifar10(root: Path) -> list[Path] | None:
    """Find the five training batches, the test batch and the class names."""
    return _find(root, _CIFAR10_FILES)


def find_cifar100(root: Path) -> list[Path] | None:
    """Find the files train, test and meta of CIFAR-100."""
    return _find(root, _CIFAR100_FILES)


def read_cifar10(files: Sequence[Path], allocate: Allocate) -> Decoded:
    """Read batches of `data` uint8 (n, 3072) and `labels`."""
    return _read(files[:-2], files[-2], files[-1], b"labels", b"label_names", allocate)


def read_cifar100(files: Sequence[Path], allocate: Allocate) -> Decoded:
    """Read CIFAR-100 with its 100 fine labels."""
    train, test, meta = files
    return _read([train], test, meta, b"fine_labels", b"fine_label_names", allocate)


def _find(root: Path, names: Sequence[str]) -> list[Path] | None:
    files = [root / name for name in names]
    return files if all(file.is_file() for file in files) else None


def _read(
    train: Sequence[Path],
    test: Path,
    meta: Path,
    labels_key: bytes,
    names_key: bytes,
    allocate: Allocate,
) -> Decoded:
    class_names = tuple(_text(name) for name in _member(_load(meta), names_key, meta))
    train_batches = [_read_batch(path, labels_key, len(class_names)) for path in train]
    x_train = allocate("x_train", (sum(len(y) for _, y in train_batches), *_SHAPE))
    np.concatenate([x for x, _ in train_batches], out=x_train)
    x_test, y_test = _read_batch(test, labels_key, len(class_names))
    return Decoded(
        x_train=x_train,
        y_train=np.concatenate([y for _, y in train_batches]),
        x_test=x_test,
        y_test=y_test,
        class_names=class_names,
    )


def _read_batch(
    path: Path, labels_key: bytes, num_classes: int
) -> tuple[Images, NDArray[np.int64]]:
    batch = _load(path)
    data = np.asarray(_member(batch, b"data", path))
    labels = np.asarray(_member(batch, labels_key, path), dtype=np.int64)
    if data.dtype != np.uint8 or data.shape != (len(labels), 3 * 32 * 32):
        raise DataError(
            f"{path} holds {data.dtype} {data.shape} for {len(labels)} labels, "
            "expected uint8 (n, 3072); get the dataset again."
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
        raise DataError(f"{path} has labels outside 0..{num_classes - 1}.")
    return data.reshape(-1, *_SHAPE), labels


def _load(path: Path) -> Mapping[Any, Any]:
    try:
        content = _ArrayUnpickler(
            io.BytesIO(path.read_bytes()), encoding="bytes"
        ).load()
    except Exception as error:
        # A damaged pickle may raise nearly anything.
        raise DataError(
            f"{path} is not a CIFAR batch ({error}); get the dataset again."
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a CIFAR batch; get the dataset again.")
    return content


def _member(batch: Mapping[Any, Any], key: bytes, path: Path) -> Any:
    # Python 2 wrote the originals: keys load as bytes. Python 3 copies have text.
    for candidate in (key, key.decode()):
        if candidate in batch:
            return batch[candidate]
    raise DataError(f"{path} has no {key.decode()!r}; get the dataset again.")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

"""Look a user's own data over before it is trained on."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbnn_core.data.cache import allocate_in_memory
from fedbnn_core.data.dataset import Images, Labels
from fedbnn_core.data.readers import folder as folder_reader
from fedbnn_core.data.readers import npz
from fedbnn_core.data.readers.images import choose_shape, decode_images, read_headers
from fedbnn_core.errors import printable

__all__ = ["DataReport", "check_data"]


@dataclass(frozen=True)
class DataReport:
    """What `check_data` found."""

    class_names: tuple[str, ...]
    train_counts: Labels
    """Readable training images per class, int64 (classes,)."""
    test_counts: Labels
    """Readable test images per class."""
    has_own_test_set: bool
    """False: a fifth of each class was held out."""
    input_shape: tuple[int, int, int]
    """Shape that all images are brought to."""
    sizes: dict[tuple[int, int], int]
    """How many images have each (height, width)."""
    unreadable: tuple[str, ...]
    """Files that are left out."""
    leaks: tuple[tuple[str, str], ...]
    """Training and test images with equal pixels."""
    contradictions: tuple[tuple[str, str], ...]
    """Images with equal pixels but different classes."""
    skipped: tuple[str, ...] = ()
    """Photos in a format that is not read."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that should be put right before training, in words."""
        found = []
        if self.unreadable:
            found.append(f"{len(self.unreadable)} files cannot be read")
        if self.skipped:
            found.append(f"{len(self.skipped)} photos are in a format that is not read")
        if self.leaks:
            found.append(f"{len(self.leaks)} test images are also training images")
        if self.contradictions:
            found.append(f"{len(self.contradictions)} images have two classes")
        for name, count in zip(self.class_names, self.train_counts, strict=True):
            if count == 0:
                found.append(f"class {name} has no training images")
        for name, count in zip(self.class_names, self.test_counts, strict=True):
            if count == 0:
                found.append(f"class {name} has no test images")
        return tuple(found)


def check_data(path: Path, image_size: tuple[int, int] | None = None) -> DataReport:
    """Decode everything once and compare it, without touching the cache.

    Parameters
    ----------
    path : Path
        A folder of images as for ``folder:PATH``, or an .npz file.
    image_size : tuple of int, optional
        Height and width to resize to, as in `load_dataset`.
    """
    if path.suffix == ".npz" and path.is_file():
        return _check_npz(path)
    listing = folder_reader.list_folder(path)
    headers = read_headers(listing.files)
    shape = choose_shape(headers, image_size)
    x_train, train_ok = decode_images(
        "x_train", listing.train, shape, allocate_in_memory
    )
    x_test, test_ok = decode_images("x_test", listing.test, shape, allocate_in_memory)
    train, test = (
        [str(file.relative_to(path)) for file in files]
        for files in (listing.train, listing.test)
    )
    readable = np.concatenate([train_ok, test_ok])
    return _report(
        class_names=listing.class_names,
        splits=(
            (x_train, listing.y_train[train_ok], _keep(train, train_ok)),
            (x_test, listing.y_test[test_ok], _keep(test, test_ok)),
        ),
        has_own_test_set=listing.is_divided,
        sizes=Counter(
            (header.height, header.width)
            for header, ok in zip(headers, readable, strict=True)
            if header is not None and ok
        ),
        unreadable=tuple(_keep([*train, *test], ~readable)),
        skipped=tuple(str(file.relative_to(path)) for file in listing.skipped),
    )


def _check_npz(path: Path) -> DataReport:
    decoded = npz.read([path], allocate_in_memory)
    height, width = decoded.x_train.shape[2:]
    splits = tuple(
        (x, y, [f"{split}[{index}]" for index in range(len(y))])
        for split, x, y in (
            ("train", decoded.x_train, decoded.y_train),
            ("test", decoded.x_test, decoded.y_test),
        )
    )
    return _report(
        class_names=decoded.class_names,
        splits=splits,
        has_own_test_set=npz.has_test_set(path),
        sizes={(height, width): len(decoded.y_train) + len(decoded.y_test)},
        unreadable=(),
    )


_Split = tuple[Images, Labels, Sequence[str]]


def _report(
    *,
    class_names: tuple[str, ...],
    splits: tuple[_Split, ...],
    has_own_test_set: bool,
    sizes: dict[tuple[int, int], int],
    unreadable: tuple[str, ...],
    skipped: tuple[str, ...] = (),
) -> DataReport:
    first: dict[bytes, tuple[str, int]] = {}
    contradictions = []
    train_of: dict[bytes, str] = {}
    leaks = []
    for is_test, (images, labels, names) in enumerate(splits):
        for image, label, name in zip(images, labels, names, strict=True):
            key = hashlib.blake2b(image.tobytes(), digest_size=16).digest()
            original, original_label = first.setdefault(key, (name, int(label)))
            if original_label != label:
                contradictions.append((original, name))
            if not is_test:
                train_of.setdefault(key, name)
            elif key in train_of:
                leaks.append((train_of[key], name))
    (x_train, y_train, _), (_, y_test, _) = splits
    classes = len(class_names)
    _, channels, height, width = x_train.shape
    return DataReport(
        class_names=tuple(printable(name) for name in class_names),
        train_counts=np.bincount(y_train, minlength=classes),
        test_counts=np.bincount(y_test, minlength=classes),
        has_own_test_set=has_own_test_set,
        input_shape=(channels, height, width),
        sizes=dict(sizes),
        unreadable=tuple(printable(name) for name in unreadable),
        skipped=tuple(printable(name) for name in skipped),
        leaks=tuple((printable(a), printable(b)) for a, b in leaks),
        contradictions=tuple((printable(a), printable(b)) for a, b in contradictions),
    )


def _keep(names: Sequence[str], wanted: NDArray[np.bool_]) -> list[str]:
    return [name for name, keep in zip(names, wanted, strict=True) if keep]

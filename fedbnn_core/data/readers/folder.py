"""A folder of images, one subfolder per class: a user's or a device's own data.

Either ``train/CLASS/...`` with ``test/CLASS/...`` (``val`` or ``validation`` serve as
well), or ``CLASS/...`` alone, from which a fifth of each class is held out as test
set: always the same files, see `held_out`. Deeper folders belong to their class.
Hidden files and files that are no images are ignored; photos in formats that are not
read, such as HEIC, are counted as skipped. Files that cannot be decoded
are left out with a warning; ``fedbnn data check`` lists them.
"""

import logging
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbnn_core.data.cache import Allocate, Decoded
from fedbnn_core.data.dataset import Images, Labels
from fedbnn_core.data.readers.images import (
    IMAGE_SUFFIXES,
    choose_shape,
    decode_images,
    read_headers,
)
from fedbnn_core.data.readers.split import held_out
from fedbnn_core.errors import DataError

__all__ = ["FolderListing", "list_folder", "read"]

# Formats of photos that are not read; whoever has them should know.
_OTHER_PHOTOS = frozenset(
    f".{suffix}"
    for suffix in (
        *("arw", "avif", "cr2", "cr3", "dng", "heic", "heif", "jp2", "jxl"),
        *("nef", "orf", "raf", "raw", "rw2"),
    )
)
_TEST_FOLDERS = ("test", "val", "validation")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FolderListing:
    """The image files of a folder, before any is opened."""

    class_names: tuple[str, ...]
    train: tuple[Path, ...]
    y_train: Labels
    test: tuple[Path, ...]
    y_test: Labels
    is_divided: bool
    """Whether the folder came with its own test set."""
    skipped: tuple[Path, ...] = ()
    """Photos in a format that is not read."""

    @property
    def files(self) -> tuple[Path, ...]:
        """All image files, training files first."""
        return self.train + self.test

    @property
    def warnings(self) -> tuple[str, ...]:
        """What its owner should know before training, in words."""
        found = []
        if self.skipped:
            found.append(
                f"{len(self.skipped)} photos are skipped because their format is not "
                f"read, such as {self.skipped[0]}; convert them to JPEG or PNG"
            )
        counts = np.bincount(self.y_train, minlength=len(self.class_names))
        for name, count in zip(self.class_names, counts, strict=True):
            if count == 0:
                found.append(f"class {name} has no training images")
        return tuple(found)


def list_folder(root: Path, class_names: Sequence[str] | None = None) -> FolderListing:
    """List a folder's images and classes.

    Parameters
    ----------
    root : Path
        The folder.
    class_names : sequence of str, optional
        Fixes classes and their order; a device may hold only some of them. By
        default the subfolders are the classes, in sorted order.
    """
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; give the folder of the images.")
    test_root = next((root / n for n in _TEST_FOLDERS if (root / n).is_dir()), None)
    is_divided = test_root is not None and (root / "train").is_dir()
    roots = [root / "train", test_root] if is_divided and test_root else [root]
    found = [_class_folders(part) for part in roots]
    names = tuple(class_names or sorted({name for part in found for name in part}))
    unknown = sorted({name for part in found for name in part} - set(names))
    if unknown:
        raise DataError(
            f"{root} has a folder {unknown[0]!r}, which is none of the classes "
            f"{', '.join(names)}; rename or remove it."
        )
    if not names:
        raise DataError(
            f"{root} has no class folders; expected {root.name}/CLASS/image.png, or "
            f"{root.name}/train/CLASS/image.png with {root.name}/test/CLASS/image.png."
        )
    listed = [_list_files(part, names) for part in found]
    skipped = tuple(file for part in found for file in _other_photos(part))
    if not any(files for files, _ in listed):
        reason = f"; {skipped[0].name} and the like are not read" if skipped else ""
        raise DataError(
            f"{root} has class folders but no image files in them{reason}; add PNG or "
            "JPEG files."
        )
    files, labels = listed[0]
    if is_divided:
        test_files, test_labels = listed[1]
        return FolderListing(
            names, files, labels, test_files, test_labels, True, skipped
        )
    keys = [file.relative_to(root).as_posix() for file in files]
    test = held_out(labels, keys)
    return FolderListing(
        names,
        tuple(f for f, t in zip(files, test, strict=True) if not t),
        labels[~test],
        tuple(f for f, t in zip(files, test, strict=True) if t),
        labels[test],
        False,
        skipped,
    )


def read(
    listing: FolderListing,
    allocate: Allocate,
    *,
    image_size: tuple[int, int] | None = None,
    channels: int | None = None,
) -> Decoded:
    """Decode a folder's images; see `choose_shape` for the size they get."""
    shape = choose_shape(read_headers(listing.files), image_size, channels)
    x_train, y_train = _decode(
        "x_train", listing.train, listing.y_train, shape, allocate
    )
    x_test, y_test = _decode("x_test", listing.test, listing.y_test, shape, allocate)
    if len(y_train) == 0:
        raise DataError("None of the training images can be read.")
    return Decoded(x_train, y_train, x_test, y_test, class_names=listing.class_names)


def _decode(
    name: str,
    files: Sequence[Path],
    labels: Labels,
    shape: tuple[int, int, int],
    allocate: Allocate,
) -> tuple[Images, Labels]:
    images, readable = decode_images(name, files, shape, allocate)
    broken: NDArray[np.intp] = np.flatnonzero(~readable)
    if broken.size:
        _log.warning(
            "Left out %d of %d images that cannot be read, such as %s; "
            "'fedbnn data check' lists them.",
            broken.size,
            len(files),
            files[broken[0]],
        )
    return images, labels[readable]


def _class_folders(root: Path) -> dict[str, list[Path]]:
    """Map class names to folders; composed and decomposed accents are one name."""
    folders: dict[str, list[Path]] = {}
    for path in sorted(root.iterdir()):
        if path.is_dir() and not path.name.startswith((".", "__")):
            folders.setdefault(unicodedata.normalize("NFC", path.name), []).append(path)
    return folders


def _list_files(
    folders: dict[str, list[Path]], names: Sequence[str]
) -> tuple[tuple[Path, ...], Labels]:
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        members = _with_suffix(folders.get(name, []), IMAGE_SUFFIXES)
        files += sorted(members)
        labels += [label] * len(members)
    return tuple(files), np.array(labels, dtype=np.int64)


def _other_photos(folders: dict[str, list[Path]]) -> list[Path]:
    everything = [folder for members in folders.values() for folder in members]
    return sorted(_with_suffix(everything, _OTHER_PHOTOS))


def _with_suffix(folders: Sequence[Path], suffixes: frozenset[str]) -> list[Path]:
    """Return the files in folders and below them that end in one of the suffixes."""
    return [
        Path(parent, file)
        for folder in folders
        for parent, _, inside in os.walk(folder)
        for file in inside
        if not file.startswith(".") and os.path.splitext(file)[1].lower() in suffixes
    ]

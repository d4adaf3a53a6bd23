"""Tiny-ImageNet-200 in its official folders, with its own validation list."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedbnn_core.data.cache import Allocate, Decoded
from fedbnn_core.data.readers.images import decode_images
from fedbnn_core.errors import DataError

__all__ = ["find", "read"]

_SHAPE = (3, 64, 64)
_log = logging.getLogger(__name__)


def find(root: Path) -> list[Path] | None:
    """Find wnids.txt, the validation list, and all images of train and val.

    The official test images have no labels: the validation set is the test set.
    """
    wnids, words = root / "wnids.txt", root / "words.txt"
    listing = root / "val" / "val_annotations.txt"
    if not (wnids.is_file() and listing.is_file()):
        return None
    train = sorted((root / "train").glob("*/images/*.JPEG"))
    val = sorted((root / "val" / "images").glob("*.JPEG"))
    return [wnids, listing, *([words] if words.is_file() else []), *train, *val]


def read(files: Sequence[Path], allocate: Allocate) -> Decoded:
    """Decode all images to 3x64x64; classes are the WordNet ids in sorted order."""
    wnids_file, listing = files[:2]
    root = wnids_file.parent
    wnids = sorted(wnids_file.read_text(encoding="utf-8").split())
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    images = [file for file in files if file.suffix == ".JPEG"]

    train = [file for file in images if file.parents[2] == root / "train"]
    train_wnids = [file.parents[1].name for file in train]

    annotations = dict(
        line.split("\t")[:2]
        for line in listing.read_text(encoding="utf-8").splitlines()
        if line.strip()
    )
    val = [file for file in images if file.parent == root / "val" / "images"]
    unlisted = [file.name for file in val if file.name not in annotations]
    if unlisted:
        raise DataError(
            f"{listing} does not list {unlisted[0]} and {len(unlisted) - 1} more "
            "images; get tiny-imagenet again."
        )
    val_wnids = [annotations[file.name] for file in val]
    unknown = {*train_wnids, *val_wnids} - labels.keys()
    if unknown:
        raise DataError(f"{wnids_file} does not list the class {min(unknown)}.")

    x_train, train_ok = decode_images("x_train", train, _SHAPE, allocate)
    x_test, test_ok = decode_images("x_test", val, _SHAPE, allocate)
    broken = int((~train_ok).sum() + (~test_ok).sum())
    if broken:
        _log.warning("Left out %d unreadable images of %s.", broken, root)
    y_train = np.array([labels[wnid] for wnid in train_wnids], dtype=np.int64)
    y_test = np.array([labels[wnid] for wnid in val_wnids], dtype=np.int64)
    return Decoded(
        x_train=x_train,
        y_train=y_train[train_ok],
        x_test=x_test,
        y_test=y_test[test_ok],
        class_names=_class_names(root / "words.txt", wnids),
    )


def _class_names(words: Path, wnids: Sequence[str]) -> tuple[str, ...]:
    """Take each class's first name from words.txt, or its id without that file."""
    if not words.is_file():
        return tuple(wnids)
    lines = words.read_text(encoding="utf-8").splitlines()
    names = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return tuple(names.get(wnid, wnid).split(",")[0].strip() for wnid in wnids)

"""A device's own images, brought into the form that a run of the fleet needs."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from fedbnn_core.data import Augmentation, Dataset, load_local
from fedbnn_core.data.archive import open_npz
from fedbnn_core.data.readers.folder import list_folder
from fedbnn_core.data.readers.images import read_headers
from fedbnn_core.errors import DataError

__all__ = ["DataTask", "load_own_data", "summarise_own_data"]


@dataclass(frozen=True)
class DataTask:
    """What a run expects of a device's images; the server sends it."""

    class_names: tuple[str, ...]
    input_shape: tuple[int, int, int]
    """Channels, height, width."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_padding: int
    horizontal_flip: bool
    min_examples: int
    """Fewest training images with which a device takes part."""
    private: bool = False
    """The server may not know how many images there are."""

    @classmethod
    def of(
        cls, dataset: Dataset, *, min_examples: int, private: bool = False
    ) -> "DataTask":
        """Describe the server's dataset."""
        return cls(
            class_names=dataset.class_names,
            input_shape=dataset.input_shape,
            mean=dataset.mean,
            std=dataset.std,
            crop_padding=dataset.augmentation.crop_padding,
            horizontal_flip=dataset.augmentation.horizontal_flip,
            min_examples=min_examples,
            private=private,
        )

    def to_json(self) -> str:
        """Return the task as text, to travel in a message."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "DataTask":
        """Read what `to_json` wrote."""
        content = json.loads(text)
        for name in ("class_names", "input_shape", "mean", "std"):
            content[name] = tuple(content[name])
        return cls(**content)


def load_own_data(path: str | Path, task: DataTask) -> Dataset:
    """Load a device's images for a run; the classes and their order are the run's.

    Images of a folder are resized and turned grey or RGB as the run needs; those of an
    .npz file must have the right shape. Normalization and augmentation are the run's.

    Raises
    ------
    DataError
        The data is unreadable, has an unknown class, the wrong shape or too few images.
    """
    channels, height, width = task.input_shape
    data = load_local(
        path,
        image_size=(height, width),
        channels=channels,
        class_names=task.class_names,
    )
    if data.input_shape != task.input_shape:
        raise DataError(
            f"The images of {path} are {_shape(data.input_shape)}, the run needs "
            f"{_shape(task.input_shape)}; save them in that size."
        )
    if len(data.y_train) < task.min_examples:
        raise DataError(
            f"{path} has {len(data.y_train)} training images, at least "
            f"{task.min_examples} are needed; add images, or lower "
            "min-partition-size of the run."
        )
    return replace(
        data,
        mean=task.mean,
        std=task.std,
        test_mean=task.mean,
        test_std=task.std,
        augmentation=Augmentation(task.crop_padding, task.horizontal_flip),
    )


def summarise_own_data(path: str | Path) -> str:
    """Look at a device's data before it joins and say in a line what is there.

    Only the heads of image files are read. Raises `DataError` if there is nothing to
    train on.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise DataError(
            f"{path} does not exist; give a folder with one subfolder per class, or "
            "an .npz file"
        )
    if path.suffix == ".npz":
        with open_npz(path) as archive:
            if "y_train" not in archive:
                raise DataError(f"{path} has no 'y_train'; see 'fedbnn data check'")
            labels, counts = np.unique(archive["y_train"], return_counts=True)
        return _summary(path, [str(label) for label in labels], counts.tolist(), [])
    listing = list_folder(path)
    headers = read_headers(listing.files)
    unreadable = [
        str(file.relative_to(path))
        for file, header in zip(listing.files, headers, strict=True)
        if header is None
    ]
    if len(unreadable) == len(listing.files):
        raise DataError(
            f"none of the {len(unreadable)} image files in {path} can be read, such "
            f"as {unreadable[0]}"
        )
    readable = np.array([header is not None for header in headers])
    labels = np.concatenate([listing.y_train, listing.y_test])[readable]
    counts = np.bincount(labels, minlength=len(listing.class_names))
    told = _summary(path, listing.class_names, counts.tolist(), unreadable)
    return "; ".join((told, *listing.warnings))


def _summary(
    path: Path, names: Sequence[str], counts: Sequence[int], unreadable: Sequence[str]
) -> str:
    classes = ", ".join(
        f"{name} {count}" for name, count in zip(names, counts, strict=True)
    )
    text = f"{path}: {sum(counts)} images of {len(names)} classes ({classes})"
    if unreadable:
        text += (
            f"; {len(unreadable)} files cannot be read and are left out, such as "
            f"{unreadable[0]}"
        )
    return text


def _shape(shape: tuple[int, int, int]) -> str:
    channels, height, width = shape
    return f"{height}x{width} with {channels} channel{'s' if channels > 1 else ''}"

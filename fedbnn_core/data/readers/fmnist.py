"""Fashion-MNIST: the four idx files, and the part of it that FedBNN ships.

``fmnist-mini`` holds the first 1000 training and the first 200 test images of each
class of Fashion-MNIST, in official order (each split filtered, not sorted by class):
10,000 and 2,000 images, pixels unchanged. The file ``embedded/fmnist_mini.npz`` has
the members x_train, y_train, x_test, y_test (uint8, deflate level 9).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedbnn_core.data.cache import Allocate, Decoded
from fedbnn_core.data.readers.idx import find_files, read_idx
from fedbnn_core.errors import DataError

__all__ = ["CLASS_NAMES", "FILES", "find", "find_mini", "read", "read_mini"]

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CLASS_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_MINI = Path(__file__).parent.parent / "embedded" / "fmnist_mini.npz"


def find(root: Path) -> list[Path] | None:
    """Find the four idx files, plain or .gz."""
    return find_files(root, FILES)


def read(files: Sequence[Path], allocate: Allocate) -> Decoded:
    """Read the idx files in the order of `FILES`."""
    x_train, y_train, x_test, y_test = (read_idx(file) for file in files)
    for images, labels, path in (
        (x_train, y_train, files[0]),
        (x_test, y_test, files[2]),
    ):
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise DataError(
                f"{path} has shape {images.shape} with labels {labels.shape}; expected "
                "(n, height, width) and (n,). Get the files again."
            )
        if labels.size and labels.max() >= len(CLASS_NAMES):
            raise DataError(
                f"{path.parent} has label {labels.max()}, but Fashion-MNIST has 0..9; "
                "are these the files of another dataset?"
            )
    return Decoded(
        x_train=_as_nchw("x_train", x_train, allocate),
        y_train=y_train.astype(np.int64),
        x_test=_as_nchw("x_test", x_test, allocate),
        y_test=y_test.astype(np.int64),
        class_names=CLASS_NAMES,
    )


def find_mini() -> list[Path]:
    """Return the file that comes with FedBNN."""
    return [_MINI]


def read_mini(files: Sequence[Path], allocate: Allocate) -> Decoded:
    """Read the embedded part of Fashion-MNIST."""
    with np.load(files[0], allow_pickle=False) as archive:
        return Decoded(
            x_train=_as_nchw("x_train", archive["x_train"], allocate),
            y_train=archive["y_train"].astype(np.int64),
            x_test=_as_nchw("x_test", archive["x_test"], allocate),
            y_test=archive["y_test"].astype(np.int64),
            class_names=CLASS_NAMES,
        )


def _as_nchw(
    name: str,
    images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
    allocate: Allocate,
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    count, height, width = images.shape
    result = allocate(name, (count, 1, height, width))
    result[:, 0] = images
    return result

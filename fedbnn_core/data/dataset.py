"""What every dataset looks like once it is loaded."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedbnn_core.errors import printable
from fedbnn_core.seeding import derive_seed

__all__ = [
    "NO_AUGMENTATION",
    "Augmentation",
    "Dataset",
    "Images",
    "Labels",
    "limited",
    "split_test",
]

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Augmentation:
    """Random changes to a training image."""

    crop_padding: int = 0
    """Zero pixels added on each side before cropping back; 0 means no crop."""
    horizontal_flip: bool = False
    """Mirror half of the images left to right."""

    @property
    def is_identity(self) -> bool:
        """Whether images pass unchanged."""
        return self.crop_padding == 0 and not self.horizontal_flip


NO_AUGMENTATION = Augmentation()


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels of a classification task, before any normalization.

    Arrays may be read-only memory maps that all processes of a machine share.
    """

    name: str
    """The name it was asked for."""
    x_train: Images
    """Training images, uint8 (n, c, h, w)."""
    y_train: Labels
    """Training labels, int64 (n,), in [0, num_classes)."""
    x_test: Images
    """Test images, uint8 (m, c, h, w)."""
    y_test: Labels
    """Test labels, int64 (m,). A class may be absent here."""
    class_names: tuple[str, ...]
    """One name per class; their number is the number of classes."""
    mean: tuple[float, ...]
    """Per-channel mean of pixels / 255, used to normalize training images."""
    std: tuple[float, ...]
    """Per-channel standard deviation that goes with `mean`."""
    augmentation: Augmentation = NO_AUGMENTATION
    """What training does to its images."""
    test_mean: tuple[float, ...] = ()
    """Mean for test images; that of training unless asked for otherwise."""
    test_std: tuple[float, ...] = ()
    """Standard deviation that goes with `test_mean`."""
    writer_ids: Labels | None = None
    """Who produced each training image, int64 (n,), where that is known."""

    def __post_init__(self) -> None:
        """Make names fit to be shown; let test statistics default to training's."""
        names = tuple(printable(name) for name in self.class_names)
        object.__setattr__(self, "class_names", names)
        if not self.test_mean:
            object.__setattr__(self, "test_mean", self.mean)
            object.__setattr__(self, "test_std", self.std)

    @property
    def num_classes(self) -> int:
        """Number of classes, whether or not each occurs."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        _, channels, height, width = self.x_train.shape
        return channels, height, width


def limited(
    dataset: Dataset, *, max_train: int = 0, max_test: int = 0, seed: int = 0
) -> Dataset:
    """Keep a random choice of the images, in their order; 0 keeps all.

    The same images are kept for the same seed, whatever is done with them later.
    """

    def choice(total: int, limit: int, which: str) -> Labels | None:
        if limit == 0 or limit >= total:
            return None
        generator = np.random.default_rng(derive_seed(seed, "limit", which))
        return np.sort(generator.permutation(total)[:limit])

    train = choice(len(dataset.y_train), max_train, "train")
    if train is not None:
        writers = dataset.writer_ids
        dataset = replace(
            dataset,
            x_train=dataset.x_train[train],
            y_train=dataset.y_train[train],
            writer_ids=None if writers is None else writers[train],
        )
    test = choice(len(dataset.y_test), max_test, "test")
    if test is not None:
        dataset = replace(
            dataset, x_test=dataset.x_test[test], y_test=dataset.y_test[test]
        )
    return dataset


def split_test(dataset: Dataset, seed: int) -> tuple[Labels, Labels]:
    """Cut the test set into random halves: validation and test.

    Parameters
    ----------
    dataset : Dataset
        Its test set is cut; an odd image goes to the test half.
    seed : int
        Fixed for all methods that are compared.

    Returns
    -------
    tuple of int64 arrays
        Sorted indices of the validation half and of the test half. A small test set
        may leave a class out of one half.
    """
    generator = np.random.default_rng(derive_seed(seed, "test halves"))
    order = generator.permutation(len(dataset.y_test))
    half = len(order) // 2
    return np.sort(order[:half]), np.sort(order[half:])

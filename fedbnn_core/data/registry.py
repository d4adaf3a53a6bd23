"""All datasets by name: what they are, where their files may lie, how they are read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedbnn_core.data.cache import Allocate, Decoded
from fedbnn_core.data.dataset import NO_AUGMENTATION, Augmentation
from fedbnn_core.data.readers import (
    cifar,
    emnist,
    femnist,
    fmnist,
    npz,
    svhn,
    tiny_imagenet,
)

__all__ = ["DATASETS", "DatasetSpec", "Source", "Statistics"]


@dataclass(frozen=True)
class Statistics:
    """Normalization constants of each dataset, of pixels / 255."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    test_mean: tuple[float, ...] = ()
    """The statistics of the test set that the baselines' code uses at test time."""
    test_std: tuple[float, ...] = ()


@dataclass(frozen=True)
class Source:
    """One format in which a dataset may lie in a folder."""

    find: Callable[[Path], Sequence[Path] | None]
    read: Callable[[Sequence[Path], Allocate], Decoded]


@dataclass(frozen=True)
class DatasetSpec:
    """What is known about a dataset before it is loaded."""

    name: str
    title: str
    terms: str
    """Licence or terms of use, in short."""
    num_classes: int
    input_shape: tuple[int, int, int]
    num_train: int
    num_test: int
    source: Source
    """The format it is published in."""
    folders: tuple[str, ...] = ()
    """Folders below the data folder in which the files may lie, besides itself."""
    download_bytes: int = 0
    """Size of the download; 0 if there is none."""
    by_hand: str = ""
    """How to get the files where they cannot be downloaded."""
    class_names: tuple[str, ...] = ()
    """Names for files that carry none."""
    statistics: Statistics | None = None
    """None: computed from the training images."""
    augmentation: Augmentation = NO_AUGMENTATION

    @property
    def sources(self) -> tuple[Source, ...]:
        """All formats that are looked for: as published, then NAME.npz."""
        read_npz = partial(npz.read, class_names=self.class_names or None)
        return self.source, Source(partial(npz.find, name=self.name), read_npz)


_FMNIST_STATISTICS = Statistics((0.2860,), (0.3530,), (0.2868,), (0.3524,))

_SPECS = (
    DatasetSpec(
        name="fmnist-mini",
        title="Fashion-MNIST, 1200 images per class, part of FedBNN",
        terms="MIT (Zalando SE)",
        num_classes=10,
        input_shape=(1, 28, 28),
        num_train=10_000,
        num_test=2_000,
        source=Source(lambda _: fmnist.find_mini(), fmnist.read_mini),
        statistics=_FMNIST_STATISTICS,
    ),
    DatasetSpec(
        name="fmnist",
        title="Fashion-MNIST",
        terms="MIT (Zalando SE)",
        num_classes=10,
        input_shape=(1, 28, 28),
        num_train=60_000,
        num_test=10_000,
        source=Source(fmnist.find, fmnist.read),
        folders=("FashionMNIST/raw", "fashion-mnist", "fmnist"),
        download_bytes=30_878_645,
        class_names=fmnist.CLASS_NAMES,
        statistics=_FMNIST_STATISTICS,
    ),
    DatasetSpec(
        name="svhn",
        title="Street View House Numbers, cropped digits",
        terms="non-commercial use only",
        num_classes=10,
        input_shape=(3, 32, 32),
        num_train=73_257,
        num_test=26_032,
        source=Source(svhn.find, svhn.read),
        folders=("svhn", "SVHN"),
        download_bytes=246_316_178,
        statistics=Statistics(
            (0.4496,) * 3, (0.1995,) * 3, (0.4560,) * 3, (0.2244,) * 3
        ),
    ),
    DatasetSpec(
        name="cifar10",
        title="CIFAR-10",
        terms="research use, cite Krizhevsky 2009",
        num_classes=10,
        input_shape=(3, 32, 32),
        num_train=50_000,
        num_test=10_000,
        source=Source(cifar.find_cifar10, cifar.read_cifar10),
        folders=("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10"),
        download_bytes=170_498_071,
        statistics=Statistics((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        augmentation=Augmentation(crop_padding=4, horizontal_flip=True),
    ),
    DatasetSpec(
        name="cifar100",
        title="CIFAR-100, fine labels",
        terms="research use, cite Krizhevsky 2009",
        num_classes=100,
        input_shape=(3, 32, 32),
        num_train=50_000,
        num_test=10_000,
        source=Source(cifar.find_cifar100, cifar.read_cifar100),
        folders=("cifar-100-python", "cifar100/cifar-100-python", "cifar100"),
        download_bytes=169_001_437,
        statistics=Statistics((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        augmentation=Augmentation(crop_padding=4, horizontal_flip=True),
    ),
    DatasetSpec(
        name="tiny-imagenet",
        title="Tiny-ImageNet-200; its validation set is the test set",
        terms="ImageNet terms: non-commercial research and education",
        num_classes=200,
        input_shape=(3, 64, 64),
        num_train=100_000,
        num_test=10_000,
        source=Source(tiny_imagenet.find, tiny_imagenet.read),
        folders=("tiny-imagenet-200", "tiny-imagenet/tiny-imagenet-200"),
        download_bytes=248_100_043,
        statistics=Statistics((0.4802, 0.4481, 0.3975), (0.2302, 0.2265, 0.2262)),
        augmentation=Augmentation(crop_padding=8, horizontal_flip=True),
    ),
    DatasetSpec(
        name="femnist",
        title="FEMNIST (LEAF), characters with their writers",
        terms="NIST SD 19, public domain; LEAF BSD-2",
        num_classes=62,
        input_shape=(3, 28, 28),
        num_train=734_463,
        num_test=83_388,
        source=Source(femnist.find, femnist.read),
        folders=("femnist", "femnist/data", "leaf/data/femnist/data"),
        by_hand=(
            "Clone https://github.com/TalwalkarLab/leaf, run './preprocess.sh -s niid "
            "--sf 1.0 -k 0 -t sample' in data/femnist, and copy the folders train and "
            "test that it makes"
        ),
    ),
    DatasetSpec(
        name="emnist-letters",
        title="EMNIST Letters, upper and lower case merged",
        terms="NIST SD 19, public domain; cite Cohen et al. 2017",
        num_classes=26,
        input_shape=(1, 28, 28),
        num_train=124_800,
        num_test=20_800,
        source=Source(emnist.find, emnist.read),
        folders=("EMNIST/raw", "EMNIST/raw/gzip", "emnist-letters", "gzip"),
        download_bytes=561_753_746,
        class_names=emnist.CLASS_NAMES,
    ),
)

DATASETS = {spec.name: spec for spec in _SPECS}

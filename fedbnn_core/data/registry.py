"""All datasets by name: where their files may lie and how they are prepared."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fedbnn_core.data.cache import Allocate, Decoded, decode_once
from fedbnn_core.data.dataset import NO_AUGMENTATION, Augmentation, Dataset
from fedbnn_core.data.readers import fmnist
from fedbnn_core.errors import DataError

__all__ = [
    "DATASETS",
    "DatasetSpec",
    "Statistics",
    "data_folder",
    "dataset_names",
    "find_source",
    "load_dataset",
]

# Where system packages put datasets for all users.
_SHARED_FOLDERS = (Path("/usr/share/datasets"), Path("/usr/local/share/datasets"))


@dataclass(frozen=True)
class Statistics:
    """Normalisation constants of baselines.md section 0, of pixels / 255."""

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
    sources: tuple[Source, ...]
    folders: tuple[str, ...] = ()
    """Folders below the data folder in which the files may lie, besides itself."""
    statistics: Statistics | None = None
    """None: computed from the training images."""
    augmentation: Augmentation = NO_AUGMENTATION


_FMNIST_STATISTICS = Statistics((0.2860,), (0.3530,), (0.2868,), (0.3524,))

DATASETS = {
    spec.name: spec
    for spec in (
        DatasetSpec(
            "fmnist-mini",
            (Source(lambda _: fmnist.find_mini(), fmnist.read_mini),),
            statistics=_FMNIST_STATISTICS,
        ),
        DatasetSpec(
            "fmnist",
            (Source(fmnist.find, fmnist.read),),
            folders=("FashionMNIST/raw", "fashion-mnist", "fmnist", "raw"),
            statistics=_FMNIST_STATISTICS,
        ),
    )
}


def dataset_names() -> tuple[str, ...]:
    """List the names that `load_dataset` accepts."""
    return tuple(DATASETS)


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Say where datasets are kept: `data_dir`, else a folder of the user.

    The latter is ``$FEDBNN_DATA``, else ``$XDG_DATA_HOME/fedbnn``, else
    ``~/.local/share/fedbnn``; it does not depend on the working directory.
    """
    if data_dir:
        return Path(data_dir).expanduser()
    if folder := os.environ.get("FEDBNN_DATA"):
        return Path(folder).expanduser()
    if base := os.environ.get("XDG_DATA_HOME"):
        return Path(base) / "fedbnn"
    return Path("~/.local/share/fedbnn").expanduser()


def find_source(
    spec: DatasetSpec, data_dir: str | Path | None = None
) -> tuple[Source, Sequence[Path]] | None:
    """Look for a dataset's files in the data folder, then in the system's folders."""
    for base in (data_folder(data_dir), *_SHARED_FOLDERS):
        for root in (base, *(base / folder for folder in spec.folders)):
            for source in spec.sources:
                if files := source.find(root):
                    return source, files
    return None


def load_dataset(
    name: str,
    data_dir: str | Path | None = None,
    *,
    faithful_test_statistics: bool = False,
) -> Dataset:
    """Load a dataset by name; a second call in the same process costs nothing.

    Parameters
    ----------
    name : str
        One of `dataset_names`.
    data_dir : str or Path, optional
        Folder that holds the dataset's files; see `data_folder` for the default.
        System folders such as /usr/share/datasets are searched afterwards.
    faithful_test_statistics : bool, default False
        Normalise test images by statistics of the test set where the baselines' code
        does so (fmnist, svhn). That leaks a little of the test set.

    Raises
    ------
    DataError
        The name is unknown, or the files are missing or damaged.
    """
    folder = data_folder(data_dir).absolute() if data_dir else None
    return _load(name, folder, faithful_test_statistics)


@lru_cache(maxsize=8)
def _load(name: str, data_dir: Path | None, faithful: bool) -> Dataset:
    spec = DATASETS.get(name)
    if spec is None:
        raise DataError(
            f"Unknown dataset {name!r}; choose one of {', '.join(dataset_names())}."
        )
    found = find_source(spec, data_dir)
    if found is None:
        raise DataError(
            f"Dataset {name!r} was not found in {data_folder(data_dir)}; run "
            f"'fedbnn data get {name}', or name the folder that holds it as data-dir."
        )
    source, files = found
    entry = decode_once(name, files, lambda allocate: source.read(files, allocate))
    statistics = spec.statistics or Statistics(entry.mean, entry.std)
    use_test = faithful and bool(statistics.test_mean)
    decoded = entry.decoded
    return Dataset(
        name=name,
        x_train=decoded.x_train,
        y_train=decoded.y_train,
        x_test=decoded.x_test,
        y_test=decoded.y_test,
        class_names=decoded.class_names,
        mean=statistics.mean,
        std=statistics.std,
        augmentation=spec.augmentation,
        test_mean=statistics.test_mean if use_test else (),
        test_std=statistics.test_std if use_test else (),
        writer_ids=decoded.writer_ids,
    )

"""Load a dataset by its name, or a user's own images by their path."""

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedbnn_core.data.cache import Allocate, Decoded, Entry, decode_once
from fedbnn_core.data.dataset import NO_AUGMENTATION, Dataset, Images
from fedbnn_core.data.readers import folder as folder_reader
from fedbnn_core.data.readers import npz as npz_reader
from fedbnn_core.data.registry import DATASETS, DatasetSpec, Source, Statistics
from fedbnn_core.errors import DataError

__all__ = [
    "data_folder",
    "dataset_names",
    "find_source",
    "load_dataset",
    "load_local",
    "own_data_warnings",
    "split_size",
]

# Where system packages put datasets for all users.
_SHARED_FOLDERS = (Path("/usr/share/datasets"), Path("/usr/local/share/datasets"))
_SIZE_SUFFIX = re.compile(r"@([1-9]\d*)x([1-9]\d*)$")
_FOLDER_PREFIX, _NPZ_PREFIX = "folder:", "npz:"


def dataset_names() -> tuple[str, ...]:
    """List what `load_dataset` accepts; the last two stand for any path."""
    return (*DATASETS, f"{_FOLDER_PREFIX}PATH", f"{_NPZ_PREFIX}PATH")


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
    image_size: tuple[int, int] | None = None,
    channels: int | None = None,
    class_names: Sequence[str] | None = None,
) -> Dataset:
    """Load a dataset, shared with all processes of this machine.

    A second call in the same process costs nothing for a named dataset; own data is
    looked at again, and decoded again if files have changed.

    Parameters
    ----------
    name : str
        One of `dataset_names`. ``folder:PATH`` is a folder of images with one
        subfolder per class, ``npz:PATH`` an archive of arrays. A relative PATH is
        looked for in `data_dir`, then in the working directory. ``folder:PATH@40x52``
        sets `image_size`.
    data_dir : str or Path, optional
        Folder that holds the dataset's files; see `data_folder` for the default.
        System folders such as /usr/share/datasets are searched afterwards.
    faithful_test_statistics : bool, default False
        Normalize test images by statistics of the test set where the baselines' code
        does so (fmnist, svhn). That leaks a little of the test set.
    image_size : tuple of int, optional
        Height and width that the images of a folder are resized to; by default their
        most common size.
    channels : int, optional
        1 to read the images of a folder as grey, 3 as RGB; by default grey if all of
        them are.
    class_names : sequence of str, optional
        Classes of own data and their order, for a device that holds only some of
        them; by default what the folder or archive says.

    Raises
    ------
    DataError
        The name is unknown, the files are missing or damaged, or an option does not
        apply to this dataset.
    """
    folder = data_folder(data_dir).absolute() if data_dir else None
    classes = tuple(class_names) if class_names is not None else None
    if name.startswith(_FOLDER_PREFIX):
        text, named_size = split_size(name.removeprefix(_FOLDER_PREFIX))
        path, image_size = _own_path(text, folder), image_size or named_size
        listing = folder_reader.list_folder(path, classes)
        return _load_folder(name, listing, image_size, channels)
    if image_size is not None or channels is not None:
        raise DataError(
            f"Images of a folder:PATH can be resized, but those of {name!r} cannot; "
            "leave image_size and channels out."
        )
    if name.startswith(_NPZ_PREFIX):
        return _load_npz(
            name, _own_path(name.removeprefix(_NPZ_PREFIX), folder), classes
        )
    if classes is not None:
        raise DataError(f"The classes of {name!r} are fixed; leave class_names out.")
    return _load_named(name, folder or data_folder(), faithful_test_statistics)


def own_data_warnings(name: str, data_dir: str | Path | None = None) -> tuple[str, ...]:
    """Return what the owner of ``folder:PATH`` should know; nothing for other data."""
    if not name.startswith(_FOLDER_PREFIX):
        return ()
    folder = data_folder(data_dir).absolute() if data_dir else None
    text, _ = split_size(name.removeprefix(_FOLDER_PREFIX))
    return folder_reader.list_folder(_own_path(text, folder)).warnings


def load_local(
    path: str | Path,
    *,
    image_size: tuple[int, int] | None = None,
    channels: int | None = None,
    class_names: Sequence[str] | None = None,
) -> Dataset:
    """Load a device's own data: a folder of images or an .npz file.

    Data without a test set of its own is divided reproducibly; see `load_dataset`.
    """
    path = Path(path).expanduser()
    if path.suffix == ".npz":
        return load_dataset(f"{_NPZ_PREFIX}{path}", class_names=class_names)
    return load_dataset(
        f"{_FOLDER_PREFIX}{path}",
        image_size=image_size,
        channels=channels,
        class_names=class_names,
    )


def split_size(text: str) -> tuple[str, tuple[int, int] | None]:
    """Take a size such as @40x52 off the end of a path."""
    match = _SIZE_SUFFIX.search(text)
    if match is None:
        return text, None
    return text[: match.start()], (int(match[1]), int(match[2]))


def _own_path(text: str, data_dir: Path | None) -> Path:
    path = Path(text).expanduser()
    candidates = [path.absolute()] if data_dir is None else [data_dir / path, path]
    for candidate in candidates:
        if candidate.exists():
            return candidate.absolute()
    raise DataError(
        f"{' or '.join(map(str, candidates))} does not exist; give the path of your "
        "images, absolute or relative to the data folder."
    )


@lru_cache(maxsize=8)
def _load_named(name: str, data_dir: Path, faithful: bool) -> Dataset:
    spec = DATASETS.get(name)
    if spec is None:
        raise DataError(
            f"Unknown dataset {name!r}; choose one of {', '.join(dataset_names())}."
        )
    found = find_source(spec, data_dir)
    if found is None:
        raise DataError(
            f"Dataset {name!r} was not found in {data_dir}. Run 'fedbnn data get "
            f"{name}', which gets it or says how; or give the folder that holds it as "
            "data-dir."
        )
    source, files = found
    entry = decode_once(name, files, lambda allocate: source.read(files, allocate))
    return _dataset(name, entry, spec, faithful=faithful)


def _load_folder(
    name: str,
    listing: folder_reader.FolderListing,
    image_size: tuple[int, int] | None,
    channels: int | None,
) -> Dataset:
    def read(allocate: Allocate) -> Decoded:
        return folder_reader.read(
            listing, allocate, image_size=image_size, channels=channels
        )

    options = f"{listing.class_names} {len(listing.train)} {image_size} {channels}"
    entry = decode_once(name, listing.files, read, options=options, private=True)
    return _dataset(name, entry)


def _load_npz(name: str, path: Path, class_names: tuple[str, ...] | None) -> Dataset:
    def read(allocate: Allocate) -> Decoded:
        return npz_reader.read([path], allocate, class_names)

    options = f"{class_names}"
    return _dataset(
        name, decode_once(name, [path], read, options=options, private=True)
    )


def _dataset(
    name: str, entry: Entry, spec: DatasetSpec | None = None, *, faithful: bool = False
) -> Dataset:
    decoded = entry.decoded
    statistics = Statistics(entry.mean, entry.std)
    channels = decoded.x_train.shape[1]
    if spec is not None:
        channels = spec.input_shape[0]
        mean, std = (_repeat(values, channels) for values in (entry.mean, entry.std))
        statistics = spec.statistics or Statistics(mean, std)
    use_test = faithful and bool(statistics.test_mean)
    return Dataset(
        name=name,
        x_train=_with_channels(decoded.x_train, channels),
        y_train=decoded.y_train,
        x_test=_with_channels(decoded.x_test, channels),
        y_test=decoded.y_test,
        class_names=decoded.class_names,
        mean=statistics.mean,
        std=statistics.std,
        augmentation=spec.augmentation if spec else NO_AUGMENTATION,
        test_mean=statistics.test_mean if use_test else (),
        test_std=statistics.test_std if use_test else (),
        writer_ids=decoded.writer_ids,
    )


def _repeat(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    return values * channels if len(values) == 1 else values


def _with_channels(images: Images, channels: int) -> Images:
    """Show grey images as several equal channels, without copying them."""
    if images.shape[1] == channels:
        return images
    if images.shape[1] != 1:
        raise DataError(
            f"Expected images of {channels} channels, but the file has "
            f"{images.shape[1]}; is it the file of another dataset?"
        )
    return np.broadcast_to(images, (len(images), channels, *images.shape[2:]))

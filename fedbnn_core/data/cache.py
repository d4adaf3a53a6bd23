"""Decode a dataset once per machine and share it between all its processes.

Decoded arrays lie as .npy files in a cache folder and are opened as read-only memory
maps. The operating system then keeps one copy of each page, however many simulated
clients read it. An entry is keyed by the paths, sizes and modification times of its
source files, so that changed data is decoded again.

The folder is ``$FEDBNN_CACHE``, else ``$XDG_CACHE_HOME/fedbnn``, else
``~/.cache/fedbnn``. Where it cannot be written, each process decodes into its own
memory, and a warning says so.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbnn_core.data.dataset import Images, Labels
from fedbnn_core.files import locked

__all__ = [
    "Allocate",
    "Decoded",
    "Entry",
    "allocate_in_memory",
    "cache_folder",
    "decode_once",
]

# Part of every key: raise it when the meaning of the stored arrays changes.
_FORMAT = 1
_ARRAYS = ("x_train", "y_train", "x_test", "y_test", "writer_ids")

_log = logging.getLogger(__name__)


# Gives a reader the uint8 array to decode images into: ("x_train", shape) -> array.
Allocate = Callable[[str, tuple[int, ...]], Images]


def allocate_in_memory(name: str, shape: tuple[int, ...]) -> Images:
    """Make an array that is nowhere but in this process; `name` does not matter."""
    del name
    return np.empty(shape, dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class Decoded:
    """What a reader makes of the source files; fields as in `Dataset`."""

    x_train: Images
    y_train: Labels
    x_test: Images
    y_test: Labels
    class_names: tuple[str, ...]
    writer_ids: Labels | None = None


@dataclass(frozen=True, eq=False)
class Entry:
    """Decoded data together with the statistics of its training images."""

    decoded: Decoded
    mean: tuple[float, ...]
    """Per-channel mean of pixels / 255."""
    std: tuple[float, ...]
    """Per-channel standard deviation of pixels / 255."""


def cache_folder() -> Path:
    """Say where decoded datasets are kept; the folder need not exist."""
    if folder := os.environ.get("FEDBNN_CACHE"):
        return Path(folder).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "fedbnn"
    return Path("~/.cache/fedbnn").expanduser()


def decode_once(
    name: str,
    files: Sequence[Path],
    read: Callable[[Allocate], Decoded],
    *,
    options: str = "",
    private: bool = False,
) -> Entry:
    """Return the decoded form of `files`, from the cache if it is there.

    Parameters
    ----------
    name : str
        Shown in the entry's folder name.
    files : sequence of Path
        Everything that `read` depends on.
    read : callable
        Decodes the files; called at most once per machine, however many processes
        ask at the same time (on systems with file locks).
    options : str, optional
        Anything else that the result depends on.
    private : bool, default False
        Whether only this user may read the entry; other users share it otherwise.
    """
    label = "".join(c if c.isalnum() else "-" for c in name)[-40:]
    origin = _digest([str(_FORMAT), name, options, *(str(file) for file in files)], 6)
    content = _digest([_fingerprint(file) for file in files], 10)
    folder = cache_folder()
    entry = folder / f"{label}-{origin}-{content}"
    try:
        if not (entry / "meta.json").is_file():
            folder.mkdir(parents=True, exist_ok=True)
            # The lock only saves work: entries appear by one atomic rename.
            with locked(folder / f"{label}-{origin}.lock"):
                if not (entry / "meta.json").is_file():
                    _write_entry(entry, read, mode=0o700 if private else 0o755)
                    _drop_outdated(entry, f"{label}-{origin}-*")
        return _open_entry(entry)
    except OSError as error:
        _log.warning(
            "Cannot keep decoded data in %s (%s): every process holds its own copy. "
            "Set FEDBNN_CACHE to a writable folder.",
            folder,
            error,
        )
        decoded = read(allocate_in_memory)
        return Entry(decoded, *_channel_statistics(decoded.x_train))


def _digest(parts: Sequence[str], size: int) -> str:
    return hashlib.blake2b(
        "\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=size
    ).hexdigest()


def _fingerprint(file: Path) -> str:
    try:
        status = file.stat()
    except OSError:  # such as a link to nowhere: its reader leaves it out
        return "absent"
    return f"{status.st_size} {status.st_mtime_ns}"


def _write_entry(
    entry: Path, read: Callable[[Allocate], Decoded], *, mode: int
) -> None:
    temporary = Path(tempfile.mkdtemp(dir=entry.parent, prefix=f".{entry.name}."))

    def allocate(name: str, shape: tuple[int, ...]) -> Images:
        if 0 in shape:
            return np.empty(shape, dtype=np.uint8)
        path = temporary / f"{name}.npy"
        array: Images = np.lib.format.open_memmap(
            path, mode="w+", dtype=np.uint8, shape=shape
        )
        if hasattr(os, "posix_fallocate"):
            # A full disk is an error here; later, writing the map would be a crash.
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return array

    try:
        decoded = read(allocate)
        for name in _ARRAYS:
            array: NDArray[Any] | None = getattr(decoded, name)
            if isinstance(array, np.memmap):
                array.flush()
            elif array is not None:
                np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        mean, std = _channel_statistics(decoded.x_train)
        meta = {"class_names": decoded.class_names, "mean": mean, "std": std}
        (temporary / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
        temporary.chmod(mode)
        try:
            temporary.rename(entry)
        except OSError:
            # Another process was first; its entry holds the same.
            if not (entry / "meta.json").is_file():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _drop_outdated(entry: Path, pattern: str) -> None:
    """Remove entries of the same source made before it changed."""
    for other in entry.parent.glob(pattern):
        if other != entry:
            shutil.rmtree(other, ignore_errors=True)


def _open_entry(entry: Path) -> Entry:
    meta = json.loads((entry / "meta.json").read_text(encoding="utf-8"))
    arrays = {
        name: np.load(entry / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        for name in _ARRAYS
        if (entry / f"{name}.npy").is_file()
    }
    decoded = Decoded(class_names=tuple(meta["class_names"]), **arrays)
    return Entry(decoded, tuple(meta["mean"]), tuple(meta["std"]))


def _channel_statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute mean and standard deviation of pixels / 255 for each channel.

    From histograms: exact, and without a float copy of the images. A channel that is
    constant gets standard deviation 1, so that normalizing it stays finite.
    """
    channels = images.shape[1]
    histogram = np.zeros((channels, 256), dtype=np.int64)
    step = 4096
    for start in range(0, len(images), step):
        block = images[start : start + step]
        for channel in range(channels):
            pixels = block[:, channel].ravel()
            histogram[channel] += np.bincount(pixels, minlength=256)
    values = np.arange(256) / 255
    total = np.maximum(histogram.sum(axis=1), 1)
    mean = histogram @ values / total
    variance = histogram @ values**2 / total - mean**2
    std = np.where(variance > 1e-12, np.sqrt(np.maximum(variance, 0)), 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())

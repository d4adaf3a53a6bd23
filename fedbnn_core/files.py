"""Write files that are whole or absent, and say what to do when a disk is full."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedbnn_core.aggregation.mean import Array, Arrays
from fedbnn_core.errors import RunError

__all__ = [
    "append_durably",
    "disk_errors",
    "from_safetensors",
    "make_folder_durably",
    "remove_leftovers",
    "require_space",
    "to_safetensors",
    "write_durably",
]

_TEMPORARY_SUFFIX = ".tmp"
_RESUME = "go on with `fedbnn resume RUN_DIR`"


@contextmanager
def disk_errors(path: Path, *, then: str = _RESUME) -> Iterator[None]:
    """Turn an OSError into a `RunError` that names the path and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "free some space"
        else:
            remedy = "make sure that it can be written"
        reason = error.strerror or str(error)
        raise RunError(
            f"cannot write {path}: {reason}; {remedy}, then {then}"
        ) from error


def write_durably(path: Path, content: bytes, *, then: str = _RESUME) -> None:
    """Replace a file in one step; it survives a crash right after the return.

    Parameters
    ----------
    path, content : the file.
    then : what a person whose disk failed does once it is well again.

    Raises
    ------
    RunError
        The disk is full or the folder cannot be written; the old file is still there.
    """
    with disk_errors(path, then=then):
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=_TEMPORARY_SUFFIX)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def append_durably(path: Path, content: bytes) -> None:
    """Add to a file; what was added survives a crash right after the return.

    Raises
    ------
    RunError
        The disk is full or the file cannot be written.
    """
    with disk_errors(path):
        is_new = not path.exists()
        with path.open("ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            _sync_folder(path.parent)


def make_folder_durably(path: Path) -> None:
    """Make a folder unless it is there; it survives a crash right after the return.

    Raises
    ------
    RunError
        It cannot be made.
    """
    with disk_errors(path):
        if not path.is_dir():
            path.mkdir(parents=True)
            _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make new names survive a power cut; folders cannot be opened on Windows."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Remove what a process that was killed while writing left in a folder."""
    for path in folder.glob(f"*{_TEMPORARY_SUFFIX}"):
        path.unlink(missing_ok=True)


def require_space(folder: Path, size_bytes: int) -> None:
    """Raise `RunError` unless the folder's disk has that much room."""
    free = shutil.disk_usage(folder).free
    if free < size_bytes:
        raise RunError(
            f"the run needs about {size_bytes / 1e6:.1f} MB in {folder} and only "
            f"{free / 1e6:.1f} MB are free; free some space, keep fewer checkpoints "
            "(keep-checkpoints) or choose another output-dir"
        )


def to_safetensors(arrays: Arrays, metadata: dict[str, str] | None = None) -> bytes:
    """Return arrays as a safetensors file: plain data, no code, never pickle."""
    from safetensors.numpy import save

    return save({k: _contiguous(v) for k, v in arrays.items()}, metadata=metadata)


def _contiguous(array: Array) -> Array:
    # ascontiguousarray turns scalars into vectors of one; keep their shape.
    return np.ascontiguousarray(array).reshape(array.shape)


def from_safetensors(content: bytes, *, path: Path) -> Arrays:
    """Read a safetensors file; raise `RunError` naming the path if it is none."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays: Arrays = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise RunError(f"{path} is no valid safetensors file: {error}") from error
    return arrays

"""Write files that are whole or absent, lock them, and say when a disk is full."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedbnn_core.errors import RunError

__all__ = [
    "append_durably",
    "disk_errors",
    "lock_open_file",
    "locked",
    "make_folder_durably",
    "remove_leftovers",
    "replace_file",
    "require_space",
    "write_durably",
    "write_private",
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


def replace_file(
    path: Path, content: bytes, *, mode: int = 0o644, durable: bool = True
) -> None:
    """Replace a file in one step: a reader sees the old content or the whole new one.

    Parameters
    ----------
    path, content : the file; its folder must be there.
    mode : who may read it. Until the file is complete only its owner may.
    durable : whether it must survive a crash right after the return.

    Raises
    ------
    OSError
        It cannot be written; the old file is still there.
    """
    # mkstemp makes the file with mode 0600: nobody else can open it meanwhile.
    handle, temporary = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}.", suffix=_TEMPORARY_SUFFIX
    )
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, and its folder, with `replace_file`.

    Raises
    ------
    OSError
        It cannot be written; the old file is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content, mode=0o600)


def write_durably(path: Path, content: bytes, *, then: str = _RESUME) -> None:
    """Replace a file of a run with `replace_file`, durably.

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
        replace_file(path, content)


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


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock between processes.

    Parameters
    ----------
    path : a folder, or a file that is made if it is not there.
    wait : whether to wait for the lock, see `lock_open_file`.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    handle = os.open(path, flags, 0o666)
    try:
        lock_open_file(handle, wait=wait)
        yield
    finally:
        os.close(handle)


def lock_open_file(handle: int, *, wait: bool) -> None:
    """Lock a file until its handle is closed, at the latest when the process ends.

    Without ``fcntl`` (Windows) nothing is locked.

    Raises
    ------
    OSError
        Another one holds the lock, and ``wait`` is False.
    """
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def require_space(folder: Path, size_bytes: int) -> None:
    """Raise `RunError` unless the folder's disk has that much room."""
    free = shutil.disk_usage(folder).free
    if free < size_bytes:
        raise RunError(
            f"the run needs about {size_bytes / 1e6:.1f} MB in {folder} and only "
            f"{free / 1e6:.1f} MB are free; free some space, keep fewer checkpoints "
            "(keep-checkpoints) or choose another output-dir"
        )

"""A bundle's key and certificate as files, there only while a SuperNode needs them."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedbnn_core.files import locked, write_private
from fedbnn_core.fleet.bundle import Bundle

__all__ = ["remove_old_keys", "unpacked"]

_KEYS_PREFIX = "keys-"


@contextmanager
def unpacked(bundle: Bundle | None, state: Path) -> Iterator[Path | None]:
    """Yield a folder with the bundle's parts, which only the SuperNode needs as files.

    It is locked while it is in use: see `remove_old_keys`.
    """
    if bundle is None:
        yield None
        return
    with tempfile.TemporaryDirectory(dir=state, prefix=_KEYS_PREFIX) as name:
        folder = Path(name)
        with locked(folder):
            write_private(folder / "ca.crt", bundle.ca_certificate.encode())
            write_private(folder / "key", bundle.private_key.encode())
            yield folder


def remove_old_keys(state: Path) -> None:
    """Remove keys that a killed device left; another one may share the folder."""
    for folder in state.glob(f"{_KEYS_PREFIX}*"):
        # Locked: in use. Gone: another device was first.
        with suppress(OSError), locked(folder, wait=False):
            shutil.rmtree(folder)

"""A temporary Flower home for one run; its processes end with whoever made it.

A launcher that is killed cannot clean up. It holds a lock in the home for as long as
it lives, so the next start finds homes without an owner and ends what runs there.
"""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedbnn_core.files import locked
from fedbnn_core.flower.child import flower_environment
from fedbnn_core.flower.processes import end_marked_processes

__all__ = ["MARKER", "PORT", "end_leftovers", "private_home"]

MARKER = "FEDBNN_RUN_HOME"
"""The variable that marks all processes of a home."""
PORT = "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"
"""Where ``flwr run`` looks for its local SuperLink."""
_PREFIX = "fedbnn-"
_OWNER = "owner.lock"


@contextmanager
def private_home() -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield a temporary Flower home and the environment that leads to it."""
    home = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_temporary_folder()))
    unnamed = home / "unnamed"
    with locked(unnamed):
        # Named only when it is locked: a home that is being made is not ownerless.
        unnamed.rename(home / _OWNER)
        (home / "flwr").mkdir()
        (home / "flwr" / "config.toml").write_text(
            '[superlink]\ndefault = "local"\n'
            '[superlink.local]\naddress = ":local-in-memory:"\n',
            encoding="utf-8",
        )
        try:
            yield home, _environment(home)
        finally:
            _remove(home)


def end_leftovers() -> int:
    """End the runs whose launcher was killed; return how many there were."""
    ended = 0
    for owner in Path(_temporary_folder()).glob(f"{_PREFIX}*/{_OWNER}"):
        with suppress(OSError):  # its owner lives, or it is another user's
            if owner.stat().st_uid != os.getuid():
                continue
            with locked(owner, wait=False):
                _remove(owner.parent)
                ended += 1
    return ended


def _environment(home: Path) -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return flower_environment(home / "flwr") | {
        MARKER: str(home),
        PORT: str(port),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Never join a Ray cluster that happens to run on this host.
        "RAY_ADDRESS": os.environ.get("RAY_ADDRESS", "local"),
        "RAY_TMPDIR": str(home),
        "TORCHINDUCTOR_CACHE_DIR": str(home / "torchinductor"),
    }


def _remove(home: Path) -> None:
    end_marked_processes(MARKER, str(home))
    shutil.rmtree(home, ignore_errors=True)


def _temporary_folder() -> str:
    """Return the usual temporary folder, or /tmp where that one's path is too long.

    Ray makes sockets some 70 characters further down, and the system allows 107.
    """
    usual = tempfile.gettempdir()
    return usual if len(usual) <= 20 else "/tmp"  # noqa: S108  mkdtemp is safe there

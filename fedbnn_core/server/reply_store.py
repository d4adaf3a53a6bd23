"""Hold a round's accepted replies until they are aggregated, in bounded memory."""

import tempfile
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np

from fedbnn_core.arrays import Array, Arrays
from fedbnn_core.files import disk_errors
from fedbnn_core.server.reply import Reply

__all__ = ["DEFAULT_BUDGET_BYTES", "SPILL_PREFIX", "ReplyStore"]

DEFAULT_BUDGET_BYTES = 512 * 2**20
SPILL_PREFIX = "fedbnn-replies-"


class ReplyStore:
    """Replies of one round; those beyond the memory budget wait in temporary files.

    Parameters
    ----------
    folder : where the temporary files are made; by default the system's place.
    budget_bytes : how much may stay in memory.

    Replies arrive in any order and are handed out in partition order, so that sums do
    not depend on which client was first. Memory stays bounded however many clients
    reply: a mapped file is read array by array and its pages can be dropped.
    """

    def __init__(
        self, *, folder: Path | None = None, budget_bytes: int = DEFAULT_BUDGET_BYTES
    ) -> None:
        self._parent = folder
        self._budget_bytes = budget_bytes
        self._held_bytes = 0
        self._spilled = 0
        self._replies: dict[int, Reply] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> "ReplyStore":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forget all replies and remove the temporary files."""
        self._replies.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def __len__(self) -> int:
        return len(self._replies)

    def __contains__(self, partition_id: int) -> bool:
        return partition_id in self._replies

    def add(self, reply: Reply) -> None:
        """Keep a reply; a second one of the same client replaces the first.

        Raises
        ------
        RunError
            A temporary file cannot be written.
        """
        if self._held_bytes + reply.size_bytes <= self._budget_bytes:
            self._held_bytes += reply.size_bytes
        else:
            reply = self._spill(reply)
        self._replies[reply.partition_id] = reply

    def in_partition_order(self) -> list[Reply]:
        """Return the replies sorted by partition id."""
        return [self._replies[key] for key in sorted(self._replies)]

    def _spill(self, reply: Reply) -> Reply:
        mapped: Arrays = {}
        with disk_errors(self._parent or Path(tempfile.gettempdir())):
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(
                    prefix=SPILL_PREFIX, dir=self._parent
                )
            for name, array in reply.arrays.items():
                path = Path(self._folder.name) / f"{self._spilled}.npy"
                self._spilled += 1
                _write_npy(path, array)
                mapped[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        return replace(reply, arrays=mapped)


def _write_npy(path: Path, array: Array) -> None:
    """Write an npy file; np.save's errors would not tell that a disk is full."""
    flat = np.ascontiguousarray(array)
    header = np.lib.format.header_data_from_array_1_0(flat.reshape(array.shape))
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(flat.data)

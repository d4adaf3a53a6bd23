"""A partition as a file: which samples each client holds, in one .npz."""

import io
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedbnn_core.data.archive import open_npz
from fedbnn_core.data.dataset import Labels
from fedbnn_core.errors import DataError
from fedbnn_core.files import replace_file

__all__ = ["load_client_partition", "load_partition", "save_partition"]


def save_partition(path: Path, partition: Sequence[Labels]) -> None:
    """Write a partition as one .npz; a reader never sees half a file.

    Parameters
    ----------
    path : Path
        Written as `indices` int64 (n,) and `offsets` int64 (clients + 1,).
    partition : sequence of int64 arrays
        From `partition_indices`.
    """
    offsets = np.cumsum([0, *(len(part) for part in partition)], dtype=np.int64)
    indices = np.concatenate([np.empty(0, dtype=np.int64), *partition])
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez(content, indices=indices, offsets=offsets)
    replace_file(path, content.getvalue(), durable=False)


def load_partition(path: Path) -> list[Labels]:
    """Read all clients' indices back; the inverse of `save_partition`."""
    indices, offsets = _read_partition(path)
    return [indices[a:b] for a, b in pairwise(offsets)]


def load_client_partition(path: Path, client: int) -> Labels:
    """Read the indices of one client."""
    indices, offsets = _read_partition(path)
    if not 0 <= client < len(offsets) - 1:
        raise DataError(
            f"Partition {path} is for clients 0..{len(offsets) - 2}, but client "
            f"{client} was asked for; make the partition for more clients."
        )
    return indices[offsets[client] : offsets[client + 1]]


def _read_partition(path: Path) -> tuple[Labels, Labels]:
    with open_npz(path) as archive:
        indices = archive["indices"].astype(np.int64)
        offsets = archive["offsets"].astype(np.int64)
    if offsets.ndim != 1 or offsets.size < 2 or offsets[-1] != len(indices):
        raise DataError(f"Partition {path} is damaged; make it again.")
    return indices, offsets

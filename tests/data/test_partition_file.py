"""Partitions as files: what was saved comes back, and damage is named."""

from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.data.partition_file import (
    load_client_partition,
    load_partition,
    save_partition,
)
from fedbnn_core.errors import DataError


def test_a_saved_partition_comes_back(tmp_path: Path) -> None:
    parts = [np.array([4, 2]), np.array([], dtype=np.int64), np.array([7])]
    path = tmp_path / "näme" / "partition.npz"
    save_partition(path, parts)
    assert [part.tolist() for part in load_partition(path)] == [[4, 2], [], [7]]
    assert load_client_partition(path, 2).tolist() == [7]
    assert load_client_partition(path, 1).tolist() == []
    assert [file.name for file in path.parent.iterdir()] == ["partition.npz"]
    with pytest.raises(DataError, match=r"clients 0\.\.2"):
        load_client_partition(path, 3)


def test_a_damaged_partition_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "partition.npz"
    save_partition(path, [np.arange(50)])
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read"):
        load_partition(path)
    np.savez(path, indices=np.arange(5), offsets=np.array([0, 9]))
    with pytest.raises(DataError, match="damaged"):
        load_partition(path)

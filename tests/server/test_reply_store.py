"""The store of a round's replies: order, memory budget, clean-up."""

from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.errors import RunError
from fedbnn_core.server.reply import Reply
from fedbnn_core.server.reply_store import ReplyStore


def reply(partition, value, size=1000):
    arrays = {"w": np.full(size, value, np.float32), "s": np.array(value, np.float32)}
    return Reply(partition, 10 + partition, arrays)


def test_replies_come_out_in_partition_order():
    with ReplyStore() as store:
        for partition in (7, 2, 5):
            store.add(reply(partition, partition))
        ordered = store.in_partition_order()
        assert [r.partition_id for r in ordered] == [2, 5, 7]
        assert [r.num_examples for r in ordered] == [12, 15, 17]
        assert 5 in store
        assert 3 not in store


def test_second_reply_of_a_client_replaces_the_first():
    for budget in (10**9, 0):
        with ReplyStore(budget_bytes=budget) as store:
            store.add(reply(1, 1.0))
            store.add(reply(1, 2.0))
            assert len(store) == 1
            assert store.in_partition_order()[0].array("w")[0] == 2.0


def test_replies_beyond_the_budget_wait_in_files(tmp_path):
    with ReplyStore(folder=tmp_path, budget_bytes=9000) as store:
        for partition in range(4):
            store.add(reply(partition, float(partition)))
        ordered = store.in_partition_order()
        on_disk = [isinstance(r.array("w"), np.memmap) for r in ordered]
        assert on_disk == [False, False, True, True]
        for partition, stored in enumerate(ordered):
            np.testing.assert_array_equal(stored.array("w"), np.full(1000, partition))
            assert stored.array("s").shape == ()
        assert len(list(tmp_path.rglob("*.npy"))) == 4
    assert list(tmp_path.iterdir()) == []


def test_odd_layouts_come_back_from_files(tmp_path):
    arrays = {
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "strided": np.arange(20, dtype=np.int64)[::3],
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.array(2.5, np.float32),
    }
    with ReplyStore(folder=tmp_path, budget_bytes=-1) as store:
        store.add(Reply(0, 1, arrays))
        (stored,) = store.in_partition_order()
        for name, array in arrays.items():
            np.testing.assert_array_equal(stored.array(name), array, strict=True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="stands in for a full disk")
def test_full_disk_is_told(tmp_path):
    with ReplyStore(folder=tmp_path, budget_bytes=0) as store:
        store.add(reply(0, 1.0))
        (folder,) = tmp_path.iterdir()
        (folder / "2.npy").symlink_to("/dev/full")
        with pytest.raises(RunError, match=r"No space left on device; free some space"):
            store.add(reply(1, 1.0, size=10**6))


def test_unwritable_folder_is_told(tmp_path):
    store = ReplyStore(folder=tmp_path / "absent", budget_bytes=0)
    with pytest.raises(RunError, match="cannot write"):
        store.add(reply(0, 1.0))

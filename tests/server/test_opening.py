"""What is checked and put right when a run is opened again."""

import numpy as np
import pytest

from fedbnn_core.data import load_partition
from fedbnn_core.server.opening import open_run, stored_config
from tests.tiny_run import CLIENTS, tiny_config, write_data


@pytest.fixture
def opened(tmp_path):
    """Return a run's directory and its partition, before the first round."""
    data = write_data(tmp_path / "d.npz", train=64, test=40)
    run = open_run(tiny_config(data, tmp_path / "runs"), CLIENTS, track=False)
    run.directory.release()
    return data, run.directory.path, load_partition(run.context.partition_file)


def reopen(opened):
    data, path, _ = opened
    config = stored_config(tiny_config(data, path.parent, resume=str(path)))
    run = open_run(config, CLIENTS, track=False)
    run.directory.release()
    return run


def damages():
    yield "half", lambda content: content[: len(content) // 2]
    yield "one byte less", lambda content: content[:-1]
    yield "empty", lambda content: b""
    yield "no archive", lambda content: b"PK nonsense"
    middle = 120
    yield "changed", lambda c: c[:middle] + bytes([c[middle] ^ 255]) + c[middle + 1 :]


@pytest.mark.parametrize(("name", "damage"), damages(), ids=lambda v: str(v)[:12])
def test_a_damaged_partition_is_made_again(opened, name, damage):
    _, path, before = opened
    file = path / "partition.npz"
    file.write_bytes(damage(file.read_bytes()))
    run = reopen(opened)
    after = load_partition(file)
    assert len(after) == len(before)
    for one, other in zip(before, after, strict=True):
        assert np.array_equal(one, other)
    assert any("partition.npz was damaged" in note for note in run.notes)


def test_a_missing_partition_is_made_again(opened):
    _, path, before = opened
    (path / "partition.npz").unlink()
    reopen(opened)
    assert len(load_partition(path / "partition.npz")) == len(before)


def test_a_whole_partition_is_left_alone(opened):
    _, path, _ = opened
    content = (path / "partition.npz").read_bytes()
    run = reopen(opened)
    assert (path / "partition.npz").read_bytes() == content
    assert not any("partition" in note for note in run.notes)

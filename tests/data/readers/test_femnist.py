"""FEMNIST in LEAF's JSON."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.data import load_dataset, partition_indices
from fedbnn_core.errors import DataError


def writer_data(seed: int, count: int) -> dict[str, list[object]]:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 784))
    # LEAF stores pixel / 255 as decimal numbers.
    return {
        "x": [[value / 255 for value in row] for row in pixels.tolist()],
        "y": rng.integers(0, 62, count).tolist(),
    }


def write_file(path: Path, writers: dict[str, dict[str, list[object]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(writers),
        "num_samples": [len(data["y"]) for data in writers.values()],
        "user_data": writers,
    }
    path.write_text(json.dumps(content))


def write_leaf(root: Path) -> dict[str, dict[str, list[object]]]:
    train = {f"f{i:04}_0{i}": writer_data(i, 5 + i) for i in range(6)}
    test = {writer: writer_data(100 + i, 2) for i, writer in enumerate(train)}
    names = list(train)
    folder = root / "femnist"
    for number, part in enumerate((names[:3], names[3:])):
        suffix = f"{number}_niid_0_keep_0"
        write_file(
            folder / "train" / f"all_data_{suffix}_train_9.json",
            {name: train[name] for name in part},
        )
        write_file(
            folder / "test" / f"all_data_{suffix}_test_9.json",
            {name: test[name] for name in part},
        )
    return train


def test_pixels_labels_and_writers(tmp_path: Path) -> None:
    train = write_leaf(tmp_path)
    dataset = load_dataset("femnist", tmp_path)
    assert dataset.num_classes == 62
    assert dataset.class_names[9:12] == ("9", "A", "B")
    assert dataset.class_names[36] == "a"
    assert dataset.input_shape == (3, 28, 28)
    assert len(dataset.y_test) == 12
    position = 0
    for data in train.values():
        for x, y in zip(data["x"], data["y"], strict=True):
            expected = np.array(x).reshape(28, 28)
            for channel in range(3):
                np.testing.assert_allclose(
                    dataset.x_train[position, channel] / 255, expected, atol=1e-9
                )
            assert dataset.y_train[position] == y
            position += 1
    assert position == len(dataset.y_train)


def test_three_channels_cost_no_memory_and_share_statistics(tmp_path: Path) -> None:
    write_leaf(tmp_path)
    dataset = load_dataset("femnist", tmp_path)
    assert dataset.x_train.strides[1] == 0
    pixels = np.asarray(dataset.x_train[:, 0]) / 255
    assert dataset.mean == pytest.approx((pixels.mean(),) * 3)
    assert dataset.std == pytest.approx((pixels.std(),) * 3)


def test_natural_partition_gives_each_client_one_writer(tmp_path: Path) -> None:
    train = write_leaf(tmp_path)
    dataset = load_dataset("femnist", tmp_path)
    parts = partition_indices(
        dataset.y_train, 6, "natural", seed=0, writer_ids=dataset.writer_ids
    )
    sizes = sorted(len(data["y"]) for data in train.values())
    assert sorted(len(part) for part in parts) == sizes
    for part in parts:
        assert len(set(dataset.writer_ids[part].tolist())) == 1


def test_undivided_data_is_divided_within_each_writer(tmp_path: Path) -> None:
    writers = {f"w{i}": writer_data(i, 20) for i in range(4)}
    write_file(tmp_path / "femnist" / "all_data" / "all_data_0.json", writers)
    dataset = load_dataset("femnist", tmp_path)
    assert len(dataset.y_test) == 4 * 2
    assert np.bincount(dataset.writer_ids).tolist() == [18] * 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not LEAF JSON"),
        ('{"users": ["a"], "user_data": {}}', "not LEAF JSON"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[1]], "y": [0]}}}', "28x28"),
    ],
)
def test_other_json_is_refused(content: str, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "femnist" / "all_data"
    folder.mkdir(parents=True)
    (folder / "x.json").write_text(content)
    with pytest.raises(DataError, match=message):
        load_dataset("femnist", tmp_path)

"""Own arrays: layouts, labels of every kind, damage."""

from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.data import Dataset, load_dataset
from fedbnn_core.errors import DataError

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 5, 4), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)


def load(tmp_path: Path, **arrays: object) -> Dataset:
    path = tmp_path / "own.npz"
    np.savez(path, **arrays)
    return load_dataset(f"npz:{path}")


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (GREY, GREY[:, None]),
        (GREY[..., None], GREY[:, None]),
        (GREY[:, None], GREY[:, None]),
        (COLOUR, COLOUR.transpose(0, 3, 1, 2)),
        (COLOUR.transpose(0, 3, 1, 2), COLOUR.transpose(0, 3, 1, 2)),
        (COLOUR / 255.0, COLOUR.transpose(0, 3, 1, 2)),
        ((GREY / np.float32(255)), GREY[:, None]),
    ],
)
def test_every_layout_becomes_nchw_bytes(
    images: np.ndarray, expected: np.ndarray, tmp_path: Path
) -> None:
    labels = np.arange(6) % 2
    dataset = load(
        tmp_path, x_train=images, y_train=labels, x_test=images[:2], y_test=labels[:2]
    )
    assert dataset.x_train.dtype == np.uint8
    np.testing.assert_array_equal(dataset.x_train, expected)
    np.testing.assert_array_equal(dataset.x_test, expected[:2])


@pytest.mark.parametrize(
    ("train", "test", "expected", "names"),
    [
        (["b", "a", "b"], ["a"], [1, 0, 1], ("a", "b")),
        (["b", "ä", "b"], ["c"], [0, 2, 0], ("b", "c", "ä")),
        ([b"y", b"x", b"y"], [b"x"], [1, 0, 1], ("x", "y")),
        ([1, 26, 2], [1], [0, 2, 1], ("1", "2", "26")),
        ([0, 2, 1], [2], [0, 2, 1], ("0", "1", "2")),
        ([-1, 1, 1], [-1], [0, 1, 1], ("-1", "1")),
    ],
)
def test_labels_of_any_kind_are_numbered(
    train: list[object],
    test: list[object],
    expected: list[int],
    names: tuple[str, ...],
    tmp_path: Path,
) -> None:
    dataset = load(
        tmp_path,
        x_train=GREY[:3],
        y_train=np.array(train),
        x_test=GREY[:1],
        y_test=np.array(test),
    )
    assert dataset.y_train.tolist() == expected
    assert dataset.class_names == names
    assert dataset.y_train.dtype == np.int64


def test_named_classes_may_be_absent(tmp_path: Path) -> None:
    dataset = load(
        tmp_path,
        x_train=GREY[:3],
        y_train=np.array([0, 3, 3]),
        x_test=GREY[:1],
        y_test=np.array([3]),
        class_names=np.array(["a", "b", "c", "d"]),
    )
    assert dataset.num_classes == 4
    assert dataset.y_train.tolist() == [0, 3, 3]


def test_without_a_test_set_a_fifth_of_each_class_is_held_out(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (40, 3, 3), dtype=np.uint8)
    dataset = load(tmp_path, x_train=images, y_train=np.repeat([0, 1], 20))
    assert np.bincount(dataset.y_test).tolist() == [4, 4]
    everything = np.concatenate([dataset.x_train, dataset.x_test])[:, 0]
    assert sorted(i.tobytes() for i in everything) == sorted(
        i.tobytes() for i in images
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": None}, "has no 'x_train'"),
        ({"x_train": GREY.astype(np.int64)}, "expected uint8"),
        ({"x_train": GREY * 1.5}, r"floats in \[0, 1\]"),
        ({"x_train": GREY[0]}, "expected .n, h, w."),
        ({"x_train": np.zeros((6, 5, 4, 2), np.uint8)}, "1 or 3 channels"),
        ({"y_train": np.arange(5)}, "6 train images, 5 labels"),
        ({"y_train": np.zeros((6, 1), int)}, "one label per image"),
        ({"y_train": np.zeros(6)}, "whole numbers or text"),
        ({"x_test": COLOUR[:2]}, "one shape"),
        ({"class_names": np.array(["only"])}, "1 classes are named"),
        ({"y_train": np.array([object()] * 6, dtype=object)}, "not Python objects"),
    ],
)
def test_unusable_arrays_say_what_is_expected(
    changes: dict[str, np.ndarray | None], message: str, tmp_path: Path
) -> None:
    arrays = {
        "x_train": GREY,
        "y_train": np.arange(6),
        "x_test": GREY[:2],
        "y_test": np.arange(2),
        **changes,
    }
    kept = {key: value for key, value in arrays.items() if value is not None}
    with pytest.raises(DataError, match=message):
        load(tmp_path, **kept)


def test_a_file_that_is_no_archive_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"is not an \.npz archive"):
        load_dataset(f"npz:{path}")
    np.save(tmp_path / "one.npy", GREY)
    (tmp_path / "one.npy").rename(path)
    with pytest.raises(DataError, match=r"is not an \.npz archive"):
        load_dataset(f"npz:{path}")

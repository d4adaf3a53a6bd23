"""idx files written byte by byte: fmnist and emnist-letters."""

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.data import load_dataset
from fedbnn_core.data.readers.idx import read_idx
from fedbnn_core.errors import DataError

FMNIST = {
    "train-images-idx3-ubyte": (2051, 30),
    "train-labels-idx1-ubyte": (2049, 30),
    "t10k-images-idx3-ubyte": (2051, 10),
    "t10k-labels-idx1-ubyte": (2049, 10),
}


def idx_bytes(array: np.ndarray) -> bytes:
    magic = 2048 + array.ndim
    return struct.pack(f">{array.ndim + 1}i", magic, *array.shape) + array.tobytes()


def write_fmnist(folder: Path, *, packed: bool) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    arrays = {}
    for name, (magic, count) in FMNIST.items():
        if magic == 2051:
            arrays[name] = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        else:
            arrays[name] = rng.integers(0, 10, count, dtype=np.uint8)
        content = idx_bytes(arrays[name])
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return arrays


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("layout", [".", "FashionMNIST/raw", "fashion-mnist"])
def test_fmnist_in_every_layout(tmp_path: Path, layout: str, packed: bool) -> None:
    arrays = write_fmnist(tmp_path / "data" / layout, packed=packed)
    dataset = load_dataset("fmnist", tmp_path / "data")
    np.testing.assert_array_equal(
        dataset.x_train[:, 0], arrays["train-images-idx3-ubyte"]
    )
    np.testing.assert_array_equal(
        dataset.x_test[:, 0], arrays["t10k-images-idx3-ubyte"]
    )
    np.testing.assert_array_equal(dataset.y_train, arrays["train-labels-idx1-ubyte"])
    np.testing.assert_array_equal(dataset.y_test, arrays["t10k-labels-idx1-ubyte"])
    assert dataset.input_shape == (1, 28, 28)
    assert (dataset.mean, dataset.std) == ((0.2860,), (0.3530,))


def test_emnist_letters_are_turned_upright_and_counted_from_zero(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "EMNIST" / "raw"
    folder.mkdir(parents=True)
    image = np.arange(28 * 28, dtype=np.uint64).reshape(28, 28).astype(np.uint8)
    for split, labels in (("train", [1, 26, 2]), ("test", [26, 1])):
        images = np.stack([image.T] * len(labels))
        name = folder / f"emnist-letters-{split}"
        Path(f"{name}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        Path(f"{name}-labels-idx1-ubyte").write_bytes(
            idx_bytes(np.array(labels, dtype=np.uint8))
        )
    dataset = load_dataset("emnist-letters", tmp_path)
    np.testing.assert_array_equal(dataset.x_train[1, 0], image)
    assert dataset.y_train.tolist() == [0, 25, 1]
    assert dataset.y_test.tolist() == [25, 0]
    assert dataset.class_names[25] == "Z"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (b"\0\0\x0d\x01\0\0\0\x01abcd", "not an idx file"),
        (idx_bytes(np.zeros((3, 4), np.uint8))[:-1], "promises 12 .* holds 11"),
        (idx_bytes(np.zeros((3, 4), np.uint8)) + b"x", "promises 12 .* holds 13"),
        (b"\0\0\x08\x03\0\0", "promises"),
    ],
)
def test_damaged_files_are_errors(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(path)


def test_a_truncated_gz_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((30, 40), np.uint8)))[:-9])
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(path)


def test_a_gz_that_unpacks_to_more_than_it_promises_is_not_unpacked(
    tmp_path: Path,
) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb") as file:
        file.write(idx_bytes(np.zeros((3, 4), np.uint8)))
        for _ in range(256):
            file.write(bytes(2**20))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"promises 12 .* holds 13 or more"):
        read_idx(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24 < 256 * 2**20


def test_a_file_that_promises_terabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    header = struct.pack(">4i", 2051, 10**6, 1000, 1000)
    path.write_bytes(gzip.compress(header + bytes(2**20)))
    with pytest.raises(DataError, match="at most"):
        read_idx(path)


def test_labels_of_another_dataset_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "fmnist"
    write_fmnist(folder, packed=False)
    labels = np.full(30, 26, dtype=np.uint8)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    with pytest.raises(DataError, match="label 26"):
        load_dataset("fmnist", tmp_path)

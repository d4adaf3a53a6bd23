"""CIFAR batches in the byte layout of the originals, against torchvision's reader."""

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.data import load_dataset
from fedbnn_core.data.torchvision_compat import import_torchvision
from fedbnn_core.errors import DataError

# The originals were written by Python 2's cPickle, protocol 2. Python 3 cannot write
# the 8-bit strings of that time, so the opcodes are put together here.


def text(value: bytes) -> bytes:
    if len(value) < 256:
        return b"U" + bytes([len(value)]) + value
    return b"T" + struct.pack("<i", len(value)) + value


def integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    return b"J" + struct.pack("<i", value)


def array(values: np.ndarray) -> bytes:
    rows, columns = values.shape
    dtype = (
        b"cnumpy\ndtype\n(" + text(b"u1") + integer(0) + integer(1) + b"tR("
        + integer(3) + text(b"|") + b"NNN" + integer(-1) + integer(-1) + integer(0)
        + b"tb"
    )  # fmt: skip
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n("
        + integer(0) + b"t" + text(b"b") + b"tR("
        + integer(1) + b"(" + integer(rows) + integer(columns) + b"t" + dtype
        + b"\x89" + text(values.tobytes()) + b"tb"
    )  # fmt: skip


def listing(items: list[bytes]) -> bytes:
    return b"](" + b"".join(items) + b"e"


def batch(entries: dict[bytes, bytes]) -> bytes:
    body = b"".join(text(key) + value for key, value in entries.items())
    return b"\x80\x02}(" + body + b"u."


def random_batch(seed: int, count: int, classes: int) -> tuple[np.ndarray, list[int]]:
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
    return data, rng.integers(0, classes, count).tolist()


def write_cifar10(root: Path) -> tuple[np.ndarray, list[int]]:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    images, labels = [], []
    for seed, name in enumerate(
        [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    ):
        data, y = random_batch(seed, 7, 10)
        entries = {
            b"batch_label": text(b"training batch"),
            b"labels": listing([integer(label) for label in y]),
            b"data": array(data),
            b"filenames": listing([text(b"x.png")] * 7),
        }
        (folder / name).write_bytes(batch(entries))
        images.append(data)
        labels += y
    names = [text(f"class {i}".encode()) for i in range(10)]
    meta = {b"num_cases_per_batch": integer(7), b"label_names": listing(names)}
    (folder / "batches.meta").write_bytes(batch(meta))
    return np.concatenate(images), labels


def write_cifar100(root: Path) -> None:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for seed, name in enumerate(("train", "test")):
        data, y = random_batch(seed, 9, 100)
        entries = {
            b"filenames": listing([text(b"x.png")] * 9),
            b"fine_labels": listing([integer(label) for label in y]),
            b"coarse_labels": listing([integer(label // 5) for label in y]),
            b"data": array(data),
        }
        (folder / name).write_bytes(batch(entries))
    names = listing([text(f"fine {i}".encode()) for i in range(100)])
    coarse = listing([text(f"coarse {i}".encode()) for i in range(20)])
    meta = {b"fine_label_names": names, b"coarse_label_names": coarse}
    (folder / "meta").write_bytes(batch(meta))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_agrees_with_torchvision(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (write_cifar10 if name == "cifar10" else write_cifar100)(tmp_path)
    cifar = import_torchvision("torchvision.datasets.cifar")
    # Its checksums are those of the full files.
    monkeypatch.setattr(cifar, "check_integrity", lambda *_: True)
    reader = cifar.CIFAR10 if name == "cifar10" else cifar.CIFAR100
    dataset = load_dataset(name, tmp_path)
    for train, x, y in (
        (True, dataset.x_train, dataset.y_train),
        (False, dataset.x_test, dataset.y_test),
    ):
        expected = reader(str(tmp_path), train=train)
        np.testing.assert_array_equal(x.transpose(0, 2, 3, 1), expected.data)
        assert y.tolist() == expected.targets
        assert list(dataset.class_names) == expected.classes


def test_batches_follow_each_other_in_order(tmp_path: Path) -> None:
    images, labels = write_cifar10(tmp_path)
    dataset = load_dataset("cifar10", tmp_path)
    np.testing.assert_array_equal(dataset.x_train.reshape(35, 3072), images[:35])
    np.testing.assert_array_equal(dataset.x_test.reshape(7, 3072), images[35:])
    assert dataset.y_train.tolist() == labels[:35]
    assert dataset.augmentation.crop_padding == 4
    assert dataset.augmentation.horizontal_flip


def test_a_batch_rewritten_by_python_3_reads_as_well(tmp_path: Path) -> None:
    images, labels = write_cifar10(tmp_path)
    content = {"data": images[:7], "labels": labels[:7]}
    path = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(pickle.dumps(content))
    dataset = load_dataset("cifar10", tmp_path)
    np.testing.assert_array_equal(dataset.x_train[:7].reshape(7, 3072), images[:7])


class Forged:
    """Pickles to a call of os.mkdir."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_a_forged_batch_does_not_run(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    trap = tmp_path / "trap"
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(pickle.dumps({"data": Forged(trap), "labels": []}, protocol=2))
    with pytest.raises(DataError, match=r"posix\.mkdir"):
        load_dataset("cifar10", tmp_path)
    assert not trap.exists()


@pytest.mark.parametrize("cut", [0, 10, 1000])
def test_a_truncated_batch_is_an_error(cut: int, tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"data_batch_3.*get the dataset again"):
        load_dataset("cifar10", tmp_path)

"""The real datasets that developers share, against published checksums."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedbnn_core.data import load_dataset


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array)).hexdigest()


def test_cifar10(shared_data: Path) -> None:
    dataset = load_dataset("cifar10", shared_data)
    assert dataset.input_shape == (3, 32, 32)
    assert dataset.class_names[:2] == ("airplane", "automobile")
    assert len(dataset.y_train) == 20_000
    # Checksums of the complete official test set: rows of 32x32 RGB, labels as bytes.
    assert sha256(dataset.x_test.transpose(0, 2, 3, 1)) == (
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04"
    )
    assert sha256(dataset.y_test.astype(np.uint8)) == (
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5"
    )


def test_emnist_letters(shared_data: Path) -> None:
    dataset = load_dataset("emnist-letters", shared_data)
    assert dataset.x_train.shape == (124_800, 1, 28, 28)
    assert np.bincount(dataset.y_test).tolist() == [800] * 26
    assert dataset.class_names[0] == "A"
    # The commonly quoted statistics of EMNIST Letters.
    assert dataset.mean[0] == pytest.approx(0.1722, abs=5e-5)
    assert dataset.std[0] == pytest.approx(0.3309, abs=5e-5)


def test_tiny_imagenet(shared_data: Path) -> None:
    dataset = load_dataset("tiny-imagenet", shared_data)
    assert dataset.x_train.shape == (16_000, 3, 64, 64)
    assert np.bincount(dataset.y_test).tolist() == [20] * 200
    with np.load(shared_data / "tiny_imagenet.npz", allow_pickle=False) as archive:
        content, bounds = archive["jpeg_test"], archive["off_test"]
    for index in range(0, 4000, 400):
        encoded = content[bounds[index] : bounds[index + 1]].tobytes()
        expected = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))
        np.testing.assert_array_equal(
            dataset.x_test[index].transpose(1, 2, 0), expected
        )

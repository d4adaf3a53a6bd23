"""The embedded part of Fashion-MNIST against the full set."""

from pathlib import Path

import numpy as np
import pytest

import fedbnn_core.data
from fedbnn_core.data import (
    Dataset,
    class_counts,
    load_dataset,
    partition_indices,
)
from fedbnn_core.errors import DataError

EMBEDDED = Path(fedbnn_core.data.__file__).parent / "embedded"


@pytest.fixture(scope="module")
def full() -> Dataset:
    try:
        return load_dataset("fmnist")
    except DataError:
        pytest.skip("full Fashion-MNIST is not on this machine")


def test_the_embedded_data_is_small_balanced_and_keeps_its_licence() -> None:
    dataset = load_dataset("fmnist-mini")
    assert dataset.x_train.shape == (10_000, 1, 28, 28)
    assert dataset.x_test.shape == (2_000, 1, 28, 28)
    assert np.bincount(dataset.y_train).tolist() == [1000] * 10
    assert np.bincount(dataset.y_test).tolist() == [200] * 10
    assert (EMBEDDED / "fmnist_mini.npz").stat().st_size <= 6_000_000
    licence = (EMBEDDED / "LICENSE.fashion-mnist").read_text(encoding="utf-8")
    assert "Zalando SE" in licence
    assert "Permission is hereby granted, free of charge" in licence


def test_the_embedded_data_is_the_documented_part(full: Dataset) -> None:
    mini = load_dataset("fmnist-mini")
    for per_class, x, y, all_x, all_y in (
        (1000, mini.x_train, mini.y_train, full.x_train, full.y_train),
        (200, mini.x_test, mini.y_test, full.x_test, full.y_test),
    ):
        seen = [0] * 10
        position = 0
        for index, label in enumerate(all_y.tolist()):
            if seen[label] == per_class:
                continue
            seen[label] += 1
            assert y[position] == label
            assert np.array_equal(x[position], all_x[index])
            position += 1
        assert position == len(y)


def test_partitions_of_the_full_set_match_their_definitions(full: Dataset) -> None:
    assert np.bincount(full.y_train).tolist() == [6000] * 10
    parts = partition_indices(full.y_train, 100, "label-fraction", seed=1234)
    counts = class_counts(full.y_train, parts, 10)
    assert ((counts > 0).sum(axis=1) == 3).all()
    assert ((counts > 0).sum(axis=0) == 30).all()
    assert set(np.unique(counts).tolist()) == {0, 200}


def test_published_statistics_are_those_of_the_images(full: Dataset) -> None:
    faithful = load_dataset("fmnist", faithful_test_statistics=True)
    for images, mean, std in (
        (full.x_train, full.mean, full.std),
        (full.x_test, faithful.test_mean, faithful.test_std),
    ):
        histogram = np.bincount(images.ravel(), minlength=256)
        expected = np.average(np.arange(256) / 255, weights=histogram)
        squares = np.average((np.arange(256) / 255) ** 2, weights=histogram)
        assert mean[0] == pytest.approx(expected, abs=5e-5)
        assert std[0] == pytest.approx(np.sqrt(squares - expected**2), abs=5e-5)

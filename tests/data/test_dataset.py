"""Halves of the test set."""

import numpy as np

from fedbnn_core.data import Dataset, load_dataset, split_test


def tiny(test_size: int) -> Dataset:
    images = np.zeros((4, 1, 2, 2), dtype=np.uint8)
    return Dataset(
        name="tiny",
        x_train=images,
        y_train=np.zeros(4, dtype=np.int64),
        x_test=np.zeros((test_size, 1, 2, 2), dtype=np.uint8),
        y_test=np.zeros(test_size, dtype=np.int64),
        class_names=("a", "b"),
        mean=(0.5,),
        std=(0.5,),
    )


def test_halves_are_disjoint_random_and_fixed_by_the_seed() -> None:
    dataset = load_dataset("fmnist-mini")
    validation, test = split_test(dataset, seed=1)
    assert len(validation) == len(test) == 1000
    assert sorted([*validation.tolist(), *test.tolist()]) == list(range(2000))
    again, _ = split_test(dataset, seed=1)
    other, _ = split_test(dataset, seed=2)
    assert np.array_equal(validation, again)
    assert not np.array_equal(validation, other)
    # A random half of 200 per class: hypergeometric, mean 100, deviation 6.7.
    counts = np.bincount(dataset.y_test[validation])
    assert counts.min() > 70
    assert counts.max() < 130


def test_odd_and_empty_test_sets() -> None:
    validation, test = split_test(tiny(3), seed=0)
    assert (len(validation), len(test)) == (1, 2)
    validation, test = split_test(tiny(0), seed=0)
    assert (len(validation), len(test)) == (0, 0)


def test_a_dataset_knows_its_shape_and_defaults() -> None:
    dataset = tiny(0)
    assert dataset.num_classes == 2
    assert dataset.input_shape == (1, 2, 2)
    assert (dataset.test_mean, dataset.test_std) == ((0.5,), (0.5,))

"""Partitions against their definitions."""

import numpy as np
import pytest

from fedbnn_core.data import load_dataset, partition_indices
from fedbnn_core.data.partition import (
    class_counts,
    label_entropy,
)
from fedbnn_core.errors import ConfigError, DataError

# Fashion-MNIST's labels: 6000 of each of 10 classes. The order does not matter here.
FMNIST_LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6000))


def assert_disjoint_cover(parts: list[np.ndarray], size: int) -> None:
    assert sorted(index for part in parts for index in part.tolist()) == list(
        range(size)
    )


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "label-fraction"])
def test_schemes_cover_the_data_once_and_depend_on_the_seed_only(scheme: str) -> None:
    first = partition_indices(FMNIST_LABELS, 100, scheme, seed=1)
    again = partition_indices(FMNIST_LABELS, 100, scheme, seed=1)
    other = partition_indices(FMNIST_LABELS, 100, scheme, seed=2)
    assert_disjoint_cover(first, 60000)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_parts_are_near_equal_and_mixed() -> None:
    parts = partition_indices(FMNIST_LABELS[:59950], 100, "iid", seed=3)
    assert sorted({len(part) for part in parts}) == [599, 600]
    counts = class_counts(FMNIST_LABELS, parts, 10)
    # A count is hypergeometric: mean 60, standard deviation 7.3; 1000 counts.
    assert counts.min() > 25
    assert counts.max() < 95


def test_label_fraction_gives_3_labels_each_and_every_label_to_30_clients() -> None:
    parts = partition_indices(FMNIST_LABELS, 100, "label-fraction", seed=5)
    label_sets = [set(FMNIST_LABELS[part].tolist()) for part in parts]
    assert {len(labels) for labels in label_sets} == {3}
    for label in range(10):
        owners = [part for part in parts if label in FMNIST_LABELS[part]]
        assert len(owners) == 30
        # 6000 samples among 30 owners, evenly.
        assert {int((FMNIST_LABELS[part] == label).sum()) for part in owners} == {200}
    # Random label sets, not the ten runs of neighbours that a plain walk would give.
    assert len({frozenset(labels) for labels in label_sets}) > 30


@pytest.mark.parametrize(("classes", "expected"), [(10, 3), (62, 18), (200, 60)])
def test_label_fraction_rounds_down(classes: int, expected: int) -> None:
    labels = np.repeat(np.arange(classes), 100)
    parts = partition_indices(labels, 100, "label-fraction", seed=0)
    assert {len(set(labels[part].tolist())) for part in parts} == {expected}


def reference_dirichlet(
    labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator
) -> list[list[int]]:
    """The scheme's words as plain loops."""
    while True:
        held: list[list[int]] = [[] for _ in range(clients)]
        for label in range(10):
            members = np.flatnonzero(labels == label)
            rng.shuffle(members)
            p = rng.dirichlet([alpha] * clients)
            for client in range(clients):
                if len(held[client]) >= len(labels) / clients:
                    p[client] = 0
            cuts = np.floor(np.cumsum(p / p.sum()) * len(members)).astype(int)
            start = 0
            for client in range(clients):
                end = cuts[client] if client < clients - 1 else len(members)
                held[client] += members[start:end].tolist()
                start = end
        if min(len(part) for part in held) >= 10:
            return held


def test_dirichlet_sizes_and_entropy_lie_within_the_spread_of_20_seeds() -> None:
    def statistics(counts: np.ndarray) -> list[float]:
        sizes = counts.sum(axis=1)
        p = counts / sizes[:, None]
        entropy = [-sum(q * np.log2(q) for q in row if q > 0) for row in p]
        return [sizes.min(), np.median(sizes), sizes.max(), np.mean(entropy)]

    def counts_of(parts: list[list[int]]) -> np.ndarray:
        return np.array(
            [[np.sum(FMNIST_LABELS[part] == c) for c in range(10)] for part in parts]
        )

    reference = np.array(
        [
            statistics(
                counts_of(
                    reference_dirichlet(
                        FMNIST_LABELS, 100, 0.3, np.random.default_rng(seed)
                    )
                )
            )
            for seed in range(20)
        ]
    )
    ours = np.array(
        [
            statistics(
                counts_of(
                    [
                        part.tolist()
                        for part in partition_indices(
                            FMNIST_LABELS, 100, "dirichlet", seed=seed
                        )
                    ]
                )
            )
            for seed in range(20)
        ]
    )
    # Means of 20 seeds differ by less than 4 standard errors of their difference.
    error = np.sqrt((reference.var(axis=0) + ours.var(axis=0)) / 20)
    assert (np.abs(reference.mean(axis=0) - ours.mean(axis=0)) < 4 * error + 1e-9).all()
    # The independently recorded range of the sizes: about 130..1750, median 610.
    assert 60 < ours[:, 0].mean() < 200
    assert 590 < ours[:, 1].mean() < 630
    assert 1200 < ours[:, 2].mean() < 2000


def test_a_full_client_receives_nothing_of_later_classes() -> None:
    # One class of 90 for 2 clients, then one of 10: who holds >= 50 gets no more.
    labels = np.repeat([0, 1], [90, 10])
    for seed in range(10):
        parts = partition_indices(labels, 2, "dirichlet", seed=seed, min_size=0)
        counts = class_counts(labels, parts, 2)
        full = counts[:, 0] >= 50
        assert counts[full, 1].sum() == 0
        assert counts[:, 1].sum() == 10


def test_dirichlet_survives_a_tiny_alpha() -> None:
    labels = np.repeat(np.arange(10), 100)
    parts = partition_indices(labels, 10, "dirichlet", seed=0, alpha=1e-4, min_size=0)
    assert_disjoint_cover(parts, 1000)


def test_natural_keeps_writers_whole_and_spreads_them_evenly() -> None:
    rng = np.random.default_rng(0)
    writers = rng.integers(100, 137, 2000)
    parts = partition_indices(
        np.zeros(2000, int), 10, "natural", seed=1, writer_ids=writers
    )
    assert_disjoint_cover(parts, 2000)
    groups = [set(writers[part].tolist()) for part in parts]
    assert sorted(len(group) for group in groups) == [3] * 3 + [4] * 7
    assert len(set.union(*groups)) == sum(map(len, groups)) == 37


@pytest.mark.parametrize(
    ("error", "scheme", "clients", "options", "message"),
    [
        (ConfigError, "by-size", 2, {}, "iid, dirichlet, label-fraction, natural"),
        (ConfigError, "iid", 0, {}, "at least 1"),
        (ConfigError, "dirichlet", 2, {"alpha": 0.0}, "positive"),
        (ConfigError, "dirichlet", 2, {"alpha": float("nan")}, "positive"),
        (ConfigError, "label-fraction", 2, {"label_fraction": 1.5}, r"\(0, 1\]"),
        (ConfigError, "label-fraction", 2, {"label_fraction": 0.05}, "at least 0.1"),
        (DataError, "dirichlet", 11, {}, "fewer clients"),
        (DataError, "dirichlet", 10, {}, "larger alpha"),
        (DataError, "natural", 2, {}, "writer ids"),
        (DataError, "natural", 3, {"writer_ids": np.arange(100) % 2}, "at most 2"),
        (DataError, "natural", 3, {"writer_ids": np.arange(5)}, "each of 100"),
    ],
)
def test_impossible_requests_say_what_to_do(
    error: type[Exception],
    scheme: str,
    clients: int,
    options: dict[str, float],
    message: str,
) -> None:
    labels = np.repeat(np.arange(10), 10)
    with pytest.raises(error, match=message):
        partition_indices(labels, clients, scheme, seed=0, **options)


def test_a_client_without_a_sample_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"5 clients share 3 .* 2 of them"):
        partition_indices(np.zeros(3, int), 5, "iid", seed=0)
    parts = partition_indices(np.zeros(3, int), 3, "iid", seed=0)
    assert [len(part) for part in parts] == [1, 1, 1]


def test_labels_that_nobody_gets_are_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    labels = np.repeat(np.arange(10), 10)
    parts = partition_indices(labels, 2, "label-fraction", seed=0)
    assert sum(map(len, parts)) == 60
    assert "leave 4 of 10 labels to nobody" in caplog.text


def test_entropy_by_hand() -> None:
    counts = np.array([[5, 0, 0, 0], [2, 2, 0, 0], [3, 3, 3, 3], [0, 0, 0, 0]])
    np.testing.assert_allclose(label_entropy(counts), [0, 1, 2, 0])


def test_the_embedded_data_partitions_as_defined() -> None:
    labels = load_dataset("fmnist-mini").y_train
    parts = partition_indices(labels, 100, "label-fraction", seed=0)
    counts = class_counts(labels, parts, 10)
    assert ((counts > 0).sum(axis=1) == 3).all()
    assert ((counts > 0).sum(axis=0) == 30).all()

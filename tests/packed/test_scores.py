"""Softmax and confusion counts against plain loops."""

import math

import numpy as np
import pytest

from fedbnn_core.packed.scores import confusion_counts, softmax


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 1)])
def test_softmax_is_the_share_of_exponentials(shape: tuple[int, ...]) -> None:
    logits = np.random.default_rng(0).normal(0, 3, shape).astype(np.float32)
    got = softmax(logits).reshape(-1, shape[-1])
    for row, shares in zip(logits.reshape(-1, shape[-1]), got, strict=True):
        total = math.fsum(math.exp(x) for x in row)
        assert shares == pytest.approx([math.exp(x) / total for x in row], rel=1e-12)


def test_softmax_of_large_logits_stays_finite() -> None:
    assert softmax(np.array([1e4, 0.0, -1e4])).tolist() == [1.0, 0.0, 0.0]


def test_confusion_counts_pairs() -> None:
    generator = np.random.default_rng(1)
    labels, predicted = generator.integers(0, 4, (2, 200))
    expected = np.zeros((4, 4), int)
    for true, found in zip(labels, predicted, strict=True):
        expected[true, found] += 1
    counts = confusion_counts(labels, predicted, 4)
    assert counts.tolist() == expected.tolist()
    assert counts.dtype == np.int64
    nothing = np.array([], int)
    assert confusion_counts(nothing, nothing, 2).tolist() == [[0, 0], [0, 0]]

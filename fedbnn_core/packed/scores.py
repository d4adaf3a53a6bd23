"""What a classifier's logits say: shares of the classes, confusion counts."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["confusion_counts", "softmax"]


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return exp(x_i) / sum_j exp(x_j) over the last axis, in float64."""
    wide = logits.astype(np.float64)
    shares: NDArray[np.float64] = np.exp(wide - wide.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return shares


def confusion_counts(
    labels: ArrayLike, predicted: ArrayLike, num_classes: int
) -> NDArray[np.int64]:
    """Return the counts (true class, predicted class), int64 (classes, classes)."""
    pairs = np.asarray(labels) * num_classes + np.asarray(predicted)
    counts = np.bincount(pairs, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes).astype(np.int64)

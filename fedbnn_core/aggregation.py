"""Weighted means over replies, one array at a time.

The sums run in float64 over the replies in the order given (partition order, so that
the result does not depend on which client answered first). One array of all replies
is combined before the next is touched: memory is that of one array however many
clients reply, besides the result.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Arrays", "ReplyArrays", "mean_array", "normalised_weights"]

Array = NDArray[Any]
Arrays = dict[str, Array]


class ReplyArrays(Protocol):
    """A client's accepted reply, wherever its arrays are kept."""

    @property
    def num_examples(self) -> int:
        """Samples the client trained on."""

    def array(self, name: str) -> Array:
        """Return one array of the reply."""


def normalised_weights(replies: Sequence[ReplyArrays]) -> list[float]:
    """Return p_k = n_k / sum of n over the replies (fedbnn.md section 4)."""
    counts = [reply.num_examples for reply in replies]
    total = sum(counts)
    if total <= 0:
        raise ValueError("no reply has any examples")
    return [count / total for count in counts]


def mean_array(
    arrays: Iterable[Array],
    weights: Sequence[float],
    *,
    also: Callable[[int, Array], None] | None = None,
) -> Array:
    """Return sum_k p_k a_k in the arrays' dtype; integers are rounded.

    Parameters
    ----------
    arrays : the same array of every reply, in partition order; read once each.
    weights : p_k, in the same order.
    also : called with (k, a_k) for whatever else needs a_k while it is loaded.
    """
    total: Array | None = None
    dtype = np.dtype(np.float32)
    for k, (array, weight) in enumerate(zip(arrays, weights, strict=True)):
        if total is None:
            total, dtype = np.zeros(array.shape, np.float64), array.dtype
            scratch = np.empty(array.shape, np.float64)
        np.multiply(array, weight, out=scratch, dtype=np.float64)
        total += scratch
        if also is not None:
            also(k, array)
    if total is None:
        raise ValueError("no arrays to average")
    if np.issubdtype(dtype, np.integer):
        total = np.rint(total)
    return np.asarray(total.astype(dtype))

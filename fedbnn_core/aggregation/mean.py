"""Weighted means over replies, one array at a time.

The sums run in float64 over the replies in the order given (partition order, so that
the result does not depend on which client answered first). One array of all replies
is aggregated before the next is touched: memory is that of one array however many
clients reply, besides the result.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from fedbnn_core.arrays import Array

__all__ = [
    "ReplyArrays",
    "Rule",
    "mean_array",
    "normalized_weights",
]

Rule = Callable[[Iterable[Array], Sequence[float]], Array]
"""Makes one array of the same array of every reply and the weights p_k."""

_BLOCK = 1 << 15
"""Values summed at a time: a float64 block and its scratch stay in the cache."""


class ReplyArrays(Protocol):
    """A client's accepted reply, wherever its arrays are kept."""

    @property
    def partition_id(self) -> int:
        """The client."""

    @property
    def num_examples(self) -> int:
        """Samples the client trained on."""

    def array(self, name: str) -> Array:
        """Return one array of the reply."""


def normalized_weights(replies: Sequence[ReplyArrays]) -> list[float]:
    """Return p_k = n_k / sum of n over the replies."""
    counts = [reply.num_examples for reply in replies]
    total = sum(counts)
    if total <= 0:
        raise ValueError("no reply has any examples")
    return [count / total for count in counts]


def mean_array(arrays: Iterable[Array], weights: Sequence[float]) -> Array:
    """Return sum_k p_k a_k (Eq. 24) in the arrays' dtype; integers are rounded.

    Parameters
    ----------
    arrays : the same array of every reply, in partition order. A generator is read
        one array at a time; a list is summed block by block, which is faster.
    weights : p_k, in the same order.
    """
    if not isinstance(arrays, list | tuple):
        return _streamed_mean(arrays, weights)
    if not arrays:
        raise ValueError("no arrays to average")
    first = arrays[0]
    result = np.empty(first.shape, first.dtype)
    flat_result = result.reshape(-1)
    flat = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
    total = np.empty(min(_BLOCK, first.size), np.float64)
    scratch = np.empty_like(total)
    for start in range(0, first.size, _BLOCK):
        stop = min(start + _BLOCK, first.size)
        block, product = total[: stop - start], scratch[: stop - start]
        block.fill(0.0)
        for array, weight in zip(flat, weights, strict=True):
            _add_scaled(block, product, array[start:stop], weight)
        flat_result[start:stop] = _rounded(block, first.dtype)
    return result


def _streamed_mean(arrays: Iterable[Array], weights: Sequence[float]) -> Array:
    total: Array | None = None
    dtype = np.dtype(np.float32)
    for array, weight in zip(arrays, weights, strict=True):
        if total is None:
            total, dtype = np.zeros(array.shape, np.float64), array.dtype
            scratch = np.empty(array.shape, np.float64)
        _add_scaled(total, scratch, array, weight)
    if total is None:
        raise ValueError("no arrays to average")
    return np.asarray(_rounded(total, dtype).astype(dtype))


def _add_scaled(total: Array, scratch: Array, array: Array, weight: float) -> None:
    """Add weight * array to ``total``, both in float64."""
    # Two steps: a multiplication that also converts goes through a small buffer.
    np.copyto(scratch, array)
    np.multiply(scratch, weight, out=scratch)
    np.add(total, scratch, out=total)


def _rounded(total: Array, dtype: np.dtype[Any]) -> Array:
    return np.rint(total) if np.issubdtype(dtype, np.integer) else total

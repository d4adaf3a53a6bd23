"""Aggregate replies so that a few clients with wrong updates cannot steer the model.

Flower's FedMedian and FedTrimmedAvg hold whole records of all clients in memory and
know one set of arrays; here every rule works on one array of all replies at a time,
in blocks, and so serves the real weights and the rotated ones alike. The median and
the trimmed mean give every client the same weight: otherwise an attacker would claim
more examples.
"""

import math
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from fedbnn_core.aggregation.mean import Rule, mean_array
from fedbnn_core.arrays import Array
from fedbnn_core.config import RunConfig

__all__ = [
    "aggregation_rule",
    "clip_array",
    "median_array",
    "planned_trim",
    "possible_trim",
    "trimmed_mean_array",
]

_BLOCK = 1 << 16


def aggregation_rule(config: RunConfig) -> Rule:
    """Return how a run aggregates one array of its replies."""
    if config.robust == "median":
        return median_array
    if config.robust == "trimmed-mean":
        return partial(trimmed_mean_array, trim=planned_trim(config))
    return mean_array


def median_array(arrays: Iterable[Array], weights: Sequence[float]) -> Array:
    """Return the median of every coordinate; the weights are ignored.

    With an even number of replies it is the mean of the middle two.
    """
    held = list(arrays)
    return _trimmed(held, trim=possible_trim(len(held), len(held)))


def planned_trim(config: RunConfig) -> int:
    """Return how many values a trimmed mean leaves away at each end.

    It is the share of the clients that are planned for, rounded up: a round that some
    honest clients drop out of has as many attackers as a full one.
    """
    # A little less, because 0.1 * 30 is more than 3 in floating point.
    return math.ceil(config.trim_fraction * config.clients_per_round - 1e-9)


def possible_trim(trim: int, replies: int) -> int:
    """Return how many values can be trimmed at each end so that one or two are left."""
    return min(trim, (replies - 1) // 2)


def trimmed_mean_array(
    arrays: Iterable[Array], weights: Sequence[float], *, trim: int
) -> Array:
    """Return every coordinate's mean without its smallest and largest values.

    ``trim`` values go at each end, or as many as are possible; the weights are ignored.
    """
    held = list(arrays)
    return _trimmed(held, trim=possible_trim(trim, len(held)))


def _trimmed(arrays: list[Array], *, trim: int) -> Array:
    """Return the mean of the values left after trimming at both ends of the order."""
    if not arrays:
        raise ValueError("no arrays to aggregate")
    first = arrays[0]
    result = np.empty(first.shape, first.dtype)
    flat_result = result.reshape(-1)
    flat = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
    for start in range(0, first.size, _BLOCK):
        values = np.stack([array[start : start + _BLOCK] for array in flat])
        values.sort(axis=0)
        mean = values[trim : len(arrays) - trim].mean(axis=0, dtype=np.float64)
        if np.issubdtype(first.dtype, np.integer):
            mean = np.rint(mean)
        flat_result[start : start + _BLOCK] = mean
    return result


def clip_array(array: Array, before: Array, factor: float) -> Array:
    """Return w + c (w_k - w): the array whose update is the c-fold.

    Parameters
    ----------
    array : w_k, a float array of a reply.
    before : w, the same array of the broadcast.
    factor : c in (0, 1].
    """
    update = np.subtract(array, before)
    update *= array.dtype.type(factor)
    update += before
    return update

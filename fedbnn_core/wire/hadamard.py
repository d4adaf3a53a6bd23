"""The Walsh-Hadamard transform of many blocks at once, by two matrix products.

H of a block of n = a * b values is the Kronecker product of those of a and of b, so it
costs a + b multiplications per value, at the speed of BLAS. All entries are +-1:
whatever the order of the sums, whole numbers come out exact as long as they fit.
"""

from functools import cache
from typing import Any

import numpy as np

from fedbnn_core.arrays import Array

__all__ = ["LARGEST", "SMALLEST", "block_sizes", "transform"]

LARGEST = 4096
"""Two transforms of +-1 stay within 4096**2 = 2**24, so float32 holds them exactly."""
SMALLEST = 32
"""A tensor's last block is filled up with zeros to so many values."""


def block_sizes(count: int) -> list[tuple[int, int]]:
    """Return (number, size) of the blocks that a vector is divided into, in order.

    As many of the largest as there are, then one of each smaller size that fits; what
    is left is filled up to one more of the smallest.
    """
    groups = [(count // LARGEST, LARGEST)]
    rest, size = count % LARGEST, LARGEST // 2
    while size >= SMALLEST:
        groups.append((rest // size, size))
        rest, size = rest % size, size // 2
    if rest:
        groups.append((1, SMALLEST))
    return [(number, size) for number, size in groups if number]


@cache
def _matrix(size: int, dtype: np.dtype[Any]) -> Array:
    h = np.ones((1, 1), dtype)
    while len(h) < size:
        h = np.block([[h, h], [h, -h]])
    h.setflags(write=False)
    return h


def transform(blocks: Array) -> Array:
    """Return H x of every row x, not normalized: H H x is n x.

    Parameters
    ----------
    blocks : float (number, n), n a power of two.
    """
    number, size = blocks.shape
    rows = 1 << ((size.bit_length() - 1) // 2)
    columns = size // rows
    # Block by block: products of this size BLAS does with one thread, always alike.
    turned = blocks.reshape(number, rows, columns) @ _matrix(columns, blocks.dtype)
    turned = _matrix(rows, blocks.dtype) @ turned
    result: Array = turned.reshape(number, size)
    return result

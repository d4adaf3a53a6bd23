"""How one array becomes bytes: the interface, and the coding that changes nothing."""

import math
from typing import Any, Protocol

import numpy as np

from fedbnn_core.arrays import Array
from fedbnn_core.errors import WireError

__all__ = ["Coding", "Whole", "read_scales"]

_LARGEST_SCALE = 1e30


class Coding(Protocol):
    """Writes arrays of a shape as a number of bytes that the shape alone decides."""

    def size_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the length of `encode`'s result."""

    def encode(self, array: Array, seed: int) -> bytes:
        """Return the array as bytes; the seed fixes its random numbers."""

    def decode(self, data: bytes, shape: tuple[int, ...], seed: int) -> Array:
        """Return the array; raise `WireError` if `encode` cannot have written it.

        ``data`` must have the right length.
        """


class Whole:
    """The values as they are, little-endian.

    Parameters
    ----------
    dtype : of the array.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype.newbyteorder("<")

    def size_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the size of the array itself."""
        return math.prod(shape) * self._dtype.itemsize

    def encode(self, array: Array, seed: int) -> bytes:
        """Return the values in row-major order."""
        return array.astype(self._dtype, copy=False).tobytes()

    def decode(self, data: bytes, shape: tuple[int, ...], seed: int) -> Array:
        """Return the values; what they may be is for others to judge."""
        values = np.frombuffer(data, self._dtype).reshape(shape)
        return values.astype(self._dtype.newbyteorder("="), copy=False)


def read_scales(data: bytes) -> Array:
    """Return float32 scales; raise `WireError` if one is not finite, huge or < 0."""
    scales = np.frombuffer(data, "<f4").astype(np.float32, copy=False)
    # Written so that NaN fails; -0 is not what an encoder writes.
    bad = ~(scales <= _LARGEST_SCALE) | np.signbit(scales)
    if bad.any():
        first = scales[bad][0]
        raise WireError(
            f"it holds {int(bad.sum())} scales that are none, such as {first:g}; "
            f"allowed 0 to {_LARGEST_SCALE:g}"
        )
    return scales

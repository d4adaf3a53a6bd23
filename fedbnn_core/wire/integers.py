"""Whole numbers of 16, 8 or 4 bits with one scale per filter, rounded at random.

With L = 32767, 127 or 7 and the filter's largest magnitude m,

    s = m / L,   q = floor(w / s + u),   u uniform in [0, 1):   the mean of s q is w.
"""

import math

import numpy as np

from fedbnn_core.arrays import Array
from fedbnn_core.errors import WireError
from fedbnn_core.wire.coding import read_scales
from fedbnn_core.wire.draws import uniform

__all__ = ["Integers"]


class Integers:
    """One array as whole numbers.

    First the scales of all filters, float32; then the numbers in row-major order, two
    to a byte if they have 4 bits, the first one high. A filter is what has one index
    on the first axis.

    Parameters
    ----------
    bits : 16, 8 or 4.
    """

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._levels = 2 ** (bits - 1) - 1

    def size_bytes(self, shape: tuple[int, ...]) -> int:
        """Return 4 bytes per filter and the numbers', the last byte full."""
        return 4 * shape[0] + (math.prod(shape) * self._bits + 7) // 8

    def encode(self, array: Array, seed: int) -> bytes:
        """Round every value up or down so that it is right on average."""
        rows = array.reshape(len(array), -1).astype(np.float64)
        scales = self._scales(rows)
        # A filter that is not finite keeps its scale, by which it is refused.
        usable = np.isfinite(scales) & (scales > 0)
        inverse = np.divide(1.0, scales, out=np.zeros(len(rows)), where=usable)
        with np.errstate(invalid="ignore"):
            rows *= inverse[:, None]
        rows[~usable] = 0.0
        rows += uniform(seed, rows.size).reshape(rows.shape)
        numbers = np.clip(np.floor(rows), -self._levels, self._levels)
        return scales.astype("<f4").tobytes() + self._pack(numbers.reshape(-1))

    def _scales(self, rows: Array) -> Array:
        most = np.abs(rows).max(axis=1, initial=0.0)
        with np.errstate(over="ignore"):
            scales = (most / self._levels).astype(np.float32)
        # Rounded up, so that the largest value is not beyond the last level.
        small = scales.astype(np.float64) * self._levels < most
        scales[small] = np.nextafter(scales[small], np.float32(np.inf))
        result: Array = scales
        return result

    def _pack(self, numbers: Array) -> bytes:
        if self._bits == 4:
            nibbles = np.zeros(-(-numbers.size // 2) * 2, np.uint8)
            nibbles[: numbers.size] = numbers.astype(np.int8).view(np.uint8) & 15
            return (nibbles[::2] << 4 | nibbles[1::2]).tobytes()
        return numbers.astype(f"<i{self._bits // 8}").tobytes()

    def decode(self, data: bytes, shape: tuple[int, ...], seed: int) -> Array:
        """Return s q in float32."""
        count = math.prod(shape)
        scales = read_scales(data[: 4 * shape[0]])
        numbers = self._unpack(data[4 * shape[0] :], count)
        if count and int(numbers.min()) < -self._levels:
            raise WireError(
                f"it holds the number {int(numbers.min())}, allowed are "
                f"{-self._levels} to {self._levels}"
            )
        values = numbers.astype(np.float32).reshape(len(scales), -1)
        values *= scales[:, None]
        return values.reshape(shape)

    def _unpack(self, data: bytes, count: int) -> Array:
        if self._bits != 4:
            return np.frombuffer(data, f"<i{self._bits // 8}")
        pairs = np.frombuffer(data, np.uint8)
        nibbles = np.stack((pairs >> 4, pairs & 15), axis=1).reshape(-1)
        if nibbles[count:].any():
            raise WireError("its padding bits are not zero")
        # Sign of 4 bits: 8 to 15 stand for -8 to -1.
        return ((nibbles[:count] ^ 8).astype(np.int8) - 8).astype(np.int8)

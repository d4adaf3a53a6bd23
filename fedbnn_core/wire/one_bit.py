"""One bit per value, right on average, without memory on the sender.

After DRIVE and EDEN (Vargaftik et al., 2021 and 2022): blocks are turned by a random
rotation that both sides know, and only the signs of the result and one scale travel.
With H the Hadamard transform and D1, D2 random signs,

    y = H D2 H D1 x,   sent: sign(y), s = |x|^2 / |y|_1,   x^ = s D1 H D2 H sign(y).

x^ . x = |x|^2 always, and the mean of x^ over the random signs is x but for a share of
1/n; |x^ - x|^2 is about (pi/2 - 1) |x|^2. Two transforms: after one alone a value that
outweighs its block would come out too small on average.

The receiver starts from signs and so transforms whole numbers, exactly: every machine
and every BLAS reads the same weights.
"""

import math
from collections.abc import Iterator

import numpy as np

from fedbnn_core.arrays import Array
from fedbnn_core.seeding import derive_seed
from fedbnn_core.wire.coding import read_scales
from fedbnn_core.wire.draws import random_signs
from fedbnn_core.wire.hadamard import block_sizes, transform

__all__ = ["OneBit"]

_LEAST_EXPONENT = -126
"""Of the power of two that a block is divided by: 2**126 is a float32."""
_AT_ONCE = 1 << 18
"""Values transformed at a time: they stay in a processor's cache."""


class OneBit:
    """One array as signs of its rotated blocks and a scale for each block.

    First the scales, float32, then the signs, 8 to a byte, the first one highest; 1 is
    positive. Blocks have 32 or more values, so no byte is partly filled.
    """

    def size_bytes(self, shape: tuple[int, ...]) -> int:
        """Return 4 bytes per block and a bit per value, filled up to whole blocks."""
        groups = block_sizes(math.prod(shape))
        return sum(number * (4 + size // 8) for number, size in groups)

    def encode(self, array: Array, seed: int) -> bytes:
        """Rotate, take signs, and find the scales."""
        padded, parts = _parts(math.prod(array.shape))
        values = np.zeros(padded, np.float32)
        values[: array.size] = array.reshape(-1)
        first, second = _rotation(seed, padded)
        scales, signs = [], []
        for part, size in parts:
            x = values[part].reshape(-1, size)
            scale, y = _rotate(x, first[part], second[part])
            scales.append(scale)
            signs.append(np.packbits(y.reshape(-1) >= 0))
        packed = np.concatenate([*signs, np.empty(0, np.uint8)])
        scale = np.concatenate([*scales, np.empty(0, np.float32)])
        return scale.astype("<f4").tobytes() + packed.tobytes()

    def decode(self, data: bytes, shape: tuple[int, ...], seed: int) -> Array:
        """Turn the signs back and scale them, float32."""
        count = math.prod(shape)
        padded, parts = _parts(count)
        bits = np.frombuffer(data[len(data) - padded // 8 :], np.uint8)
        scales = read_scales(data[: len(data) - padded // 8])
        first, second = _rotation(seed, padded)
        values = np.empty(padded, np.float32)
        done = 0
        for part, size in parts:
            signs = np.unpackbits(bits[part.start // 8 : part.stop // 8])
            x = signs.astype(np.float32).reshape(-1, size)
            x *= 2
            x -= 1
            x = transform(transform(x) * second[part].reshape(x.shape))
            x *= first[part].reshape(x.shape)
            x *= scales[done : done + len(x), None]
            values[part] = x.reshape(-1)
            done += len(x)
        return values[:count].reshape(shape)


def _parts(count: int) -> tuple[int, list[tuple[slice, int]]]:
    """Return how many values all blocks have, and (where, block size) of parts."""
    parts, start = [], 0
    for number, size in block_sizes(count):
        for part in _divided(start, number, size):
            parts.append((part, size))
        start += number * size
    return start, parts


def _divided(start: int, number: int, size: int) -> Iterator[slice]:
    step = _AT_ONCE // size * size
    stop = start + number * size
    for begin in range(start, stop, step):
        yield slice(begin, min(begin + step, stop))


def _rotation(seed: int, count: int) -> tuple[Array, Array]:
    """Return the signs D1 and D2 of all blocks."""
    first, second = (derive_seed(seed, "rotation", number) for number in (1, 2))
    return random_signs(first, count), random_signs(second, count)


def _rotate(x: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """Return s of every block and a multiple of its y; s is NaN if x is not finite."""
    most = np.abs(x).max(axis=1)
    finite = np.isfinite(most)
    # Divided by a power of two, all values are at most 1: nothing overflows.
    exponent = np.frexp(np.where(finite, most, 0.0))[1].clip(min=_LEAST_EXPONENT)
    with np.errstate(invalid="ignore"):
        part = x * np.ldexp(np.float32(1), -exponent)[:, None]
    part[~finite] = 0.0
    squares = np.square(part).sum(axis=1)
    part *= first.reshape(x.shape)
    y = transform(part)
    y *= second.reshape(x.shape)
    y = transform(y)
    lengths = np.abs(y).sum(axis=1)
    scales = np.divide(squares, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return np.where(finite, np.ldexp(scales, exponent), np.float32(np.nan)), y

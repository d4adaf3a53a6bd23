"""Random numbers that sender and receiver draw alike, on every machine.

Philox is counter-based and its stream is part of numpy's promise; only whole words of
it are used, so no version of numpy can change what a seed means.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["random_signs", "uniform"]

_WORD_BITS = 64


def _words(seed: int, count: int) -> NDArray[np.uint64]:
    words: NDArray[np.uint64] = np.random.Philox(key=seed).random_raw(count)
    return words.astype("<u8", copy=False)


def random_signs(seed: int, count: int) -> NDArray[np.int8]:
    """Return +1 and -1 with equal probability, int8 (count,)."""
    words = _words(seed, -(-count // _WORD_BITS))
    signs = np.unpackbits(words.view(np.uint8), count=count).view(np.int8)
    signs *= 2
    signs -= 1
    return signs


def uniform(seed: int, count: int) -> NDArray[np.float64]:
    """Return numbers uniform in [0, 1), multiples of 2**-32, float64 (count,)."""
    halves = _words(seed, -(-count // 2)).view("<u4")[:count]
    return halves * 2.0**-32

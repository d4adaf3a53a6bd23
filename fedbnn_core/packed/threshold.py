"""Fold batch norm and sign into one integer comparison per channel."""

import numpy as np
import numpy.typing as npt

__all__ = ["fold_thresholds", "reachable_sums"]


def reachable_sums(fan_in: int) -> npt.NDArray[np.float32]:
    """Return -n, -n + 2, ..., n: all sums of n products of signs."""
    return np.arange(-fan_in, fan_in + 1, 2, dtype=np.float32)


def fold_thresholds(
    positive: npt.NDArray[np.bool_], fan_in: int
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.bool_]]:
    """Return (thresholds, flips) with bit = (sum >= threshold) ^ flip.

    BN is monotone in the sum, so its sign changes at most once:

    - gamma > 0: false ... false true ... true. The threshold is the first true sum.
    - gamma < 0: true ... true false ... false. The threshold is the first false sum,
      and the comparison is flipped.
    - gamma = 0, or no change among the reachable sums: a constant. The threshold -n
      is always met; the constant false is its flip.

    Parameters
    ----------
    positive : bool (channels, n + 1)
        Whether BN's result is >= 0, for every one of `reachable_sums`.
    fan_in : int
        n, the number of weights per filter.
    """
    flips = positive[:, 0].copy()
    rising = positive ^ flips[:, None]
    changes = rising.any(axis=1)
    first = np.where(changes, rising.argmax(axis=1), 0)
    if (np.diff(rising.astype(np.int8), axis=1) < 0).any():
        raise ValueError("the function to fold changes its sign more than once")
    # Without a change `rising` is false everywhere, but sum >= -n is always true.
    flips ^= ~changes
    return (2 * first - fan_in).astype(np.int16), flips

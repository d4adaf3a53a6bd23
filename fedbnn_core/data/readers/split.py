"""Hold out a test set from data that has none, the same way every time."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedbnn_core.data.dataset import Labels

__all__ = ["HELD_OUT_FRACTION", "held_out"]

HELD_OUT_FRACTION = 0.2


def held_out(
    groups: Labels, keys: Sequence[str], fraction: float = HELD_OUT_FRACTION
) -> NDArray[np.bool_]:
    """Choose the samples that become the test set.

    In each group the samples whose keys hash lowest are taken, so that the choice is
    the same on every machine and hardly changes when samples are added.

    Parameters
    ----------
    groups : int64 (n,)
        The class (or writer) of each sample; each group is divided by itself.
    keys : sequence of str
        What identifies each sample, such as its file name.
    fraction : float, default 0.2
        Share to hold out, rounded per group; a group of one is all training data.

    Returns
    -------
    bool (n,)
    """
    hashes = np.array(
        [
            hashlib.blake2b(
                key.encode("utf-8", "surrogateescape"), digest_size=8
            ).digest()
            for key in keys
        ],
        dtype="S8",
    ).view(">u8")
    chosen = np.zeros(len(groups), dtype=np.bool_)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        count = min(round(fraction * len(members)), len(members) - 1)
        chosen[members[np.argsort(hashes[members], kind="stable")[:count]]] = True
    return chosen

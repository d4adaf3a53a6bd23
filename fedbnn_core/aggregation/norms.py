"""How long an update is."""

import math
from collections.abc import Mapping

import numpy as np

from fedbnn_core.arrays import Array

__all__ = ["update_norm"]


def update_norm(arrays: Mapping[str, Array], broadcast: Mapping[str, Array]) -> float:
    """Return the L2 norm of (arrays - broadcast) over the float arrays.

    An array that the broadcast lacks counts as an update of zero.
    """
    total = 0.0
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            continue
        before = broadcast.get(name)
        with np.errstate(over="ignore", invalid="ignore"):
            delta = np.asarray(np.subtract(array, 0.0 if before is None else before))
            # numpy's pairwise sum, unlike BLAS, is the same with any number of threads.
            squares = float(np.square(delta, out=delta).sum(dtype=np.float64))
            if not np.isfinite(squares):
                # float32 overflowed: once more in float64.
                wide = array.astype(np.float64)
                wide -= 0.0 if before is None else before
                squares = float(np.square(wide, out=wide).sum())
        total += squares
    return math.sqrt(total) if total >= 0 else math.inf

"""The mean of the clients' rotated weights.

    w_R = sum_k p_k rot_k(std(w_k)),   rot_k(z) = R1_k^T Z R2_k

costs 2 n (n1 + n2) operations per filter and client, 4e10 for ten ConvNeXt-Tiny: far
more than the mean of the weights. So it runs as two matrix products on a few filters
at a time, and the second one adds to the sum of the clients before.
"""

from collections.abc import Sequence

import numpy as np
import torch

from fedbnn_core.arrays import Array
from fedbnn_core.binary.mixing import standardize_in_place
from fedbnn_core.binary.rotation import Rotation

__all__ = ["filter_blocks", "rotated_mean"]

_BLOCK = 1 << 17
"""Weights at a time: their three forms stay in a processor's second-level cache."""


def filter_blocks(weights: Array) -> list[slice]:
    """Return slices of filters with about `_BLOCK` weights each."""
    step = max(1, _BLOCK * len(weights) // max(1, weights.size))
    return [slice(start, start + step) for start in range(0, len(weights), step)]


def rotated_mean(
    clients: Sequence[Array], rotations: Sequence[Rotation], weights: Sequence[float]
) -> Array:
    """Return w_R of one layer in float32, Eq. 25.

    Parameters
    ----------
    clients : the layer's weights (filters, ...) of each client, in partition order;
        the sum runs in that order.
    rotations : each client's (R1, R2).
    weights : p_k.
    """
    n1, n2 = (len(r) for r in rotations[0])
    result = np.empty_like(clients[0])
    for filters in filter_blocks(result):
        block = result[filters]
        z = torch.empty(block.shape)
        half = torch.empty(len(block) * n1, n2)
        total = torch.zeros(len(block), n1, n2)
        for w, (r1, r2), share in zip(clients, rotations, weights, strict=True):
            np.copyto(z.numpy(), w[filters])
            standardize_in_place(z)
            torch.mm(z.view(-1, n2), r2, out=half)
            left = r1.t().expand(len(block), n1, n1)
            total.baddbmm_(left, half.view(total.shape), alpha=share)
        block[...] = total.view(block.shape).numpy()
    return result

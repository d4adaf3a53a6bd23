"""Bi-rotation of a client's layer in C, for float32 on a CPU.

The steps are those of `rotation`, where they are explained, in another order of sums:
the same bits with every kernel set, and not those of torch.
"""

import torch
from torch import Tensor

from fedbnn_core.binary import native_steps

__all__ = ["takes", "turned"]


def takes(weights: Tensor) -> bool:
    """Return whether there is native code for these weights."""
    return native_steps.takes(weights) and weights.is_contiguous()


def turned(
    weights: Tensor, rotation: tuple[Tensor, Tensor], iterations: int
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return the learnt pair and how far any factor was from orthogonal.

    Parameters
    ----------
    weights : (filters, ...) that `takes` accepts.
    rotation : the current pair, float32.
    iterations : number of iterations.
    """
    r1, r2 = (r.clone(memory_format=torch.contiguous_format) for r in rotation)
    deviation = native_steps.library().turn(
        native_steps.kernel(),
        (len(weights), len(r1), len(r2)),
        iterations,
        weights.data_ptr(),
        r1.data_ptr(),
        r2.data_ptr(),
    )
    return (r1, r2), torch.tensor(deviation)

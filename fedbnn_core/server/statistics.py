"""Batch-norm statistics of the served network, estimated from images without labels.

The clients' statistics belong to the signs that they trained with. The server ships
other signs: those of an average. One pass over images gives their own statistics.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedbnn_core.binary.layer import RotatedBinaryConv2d
from fedbnn_core.binary.stem import StemConv2d

__all__ = ["estimate_statistics"]

_EXACT_BITS = 8


@torch.no_grad()
def estimate_statistics(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running statistics by their mean over the batches, in place.

    Parameters
    ----------
    model : in deployed mode; it is left in eval mode.
    batches : normalized images, each a few hundred.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    shares = [norm.momentum for norm in norms]
    layers = [
        m for m in model.modules() if isinstance(m, RotatedBinaryConv2d | StemConv2d)
    ]
    options = [layer.options for layer in layers]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean of all batches
        for layer in layers:
            # Sums in integers: fast, and the same bits on every machine.
            layer.options = replace(layer.options, gradient_bits=_EXACT_BITS)
        model.train()
        for images in batches:
            model(images)
    finally:
        for norm, share in zip(norms, shares, strict=True):
            norm.momentum = share
        for layer, before in zip(layers, options, strict=True):
            layer.options = before
        model.eval()

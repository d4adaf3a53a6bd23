"""What kinds of devices are good at."""

import torch
from torch import Tensor

__all__ = ["LAYER_BY_LAYER", "layer_by_layer", "widest"]

LAYER_BY_LAYER = ("cpu", "meta")
"""Where layers compute their weights one by one: an operation costs no launch there,
and the weights of one layer stay in the cache."""


def layer_by_layer(device: torch.device) -> bool:
    """Return whether layers compute one by one there, and not all at once."""
    return device.type in LAYER_BY_LAYER


def widest(tensor: Tensor) -> torch.dtype:
    """Return float64 on the CPU, where packed networks run, else the tensor's type.

    Other devices have no float64 or a slow one.
    """
    return torch.float64 if tensor.device.type == "cpu" else tensor.dtype

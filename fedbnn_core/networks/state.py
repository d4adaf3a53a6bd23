"""A network's state as arrays by name, and back."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from fedbnn_core.arrays import Array, Arrays

__all__ = ["load_arrays", "state_arrays"]


def state_arrays(model: nn.Module) -> Arrays:
    """Return the model's state dict as contiguous numpy copies."""
    return {
        name: np.array(tensor.detach().cpu().contiguous().numpy())
        for name, tensor in model.state_dict().items()
    }


@torch.no_grad()
def load_arrays(model: nn.Module, arrays: Mapping[str, Array]) -> None:
    """Load a state into the model; keys and shapes must match exactly."""
    targets = model.state_dict()
    if targets.keys() != arrays.keys():
        different = sorted(targets.keys() ^ arrays.keys())
        raise ValueError(f"the state does not fit the model: {different[:5]}")
    for name, target in targets.items():
        # One array at a time, so that no second copy of the state is held. np.array
        # copies: arrays from a message are read-only and torch would warn.
        source = torch.from_numpy(np.array(arrays[name]))
        if source.shape != target.shape:
            raise ValueError(
                f"{name} must have shape {tuple(target.shape)}, "
                f"got {tuple(source.shape)}"
            )
        target.copy_(source)

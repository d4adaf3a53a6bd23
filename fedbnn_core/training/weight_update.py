"""Train an update u of a frozen weight w: the layer computes with w + u.

FedBAT and FedMUD both keep a float network's weights fixed for a round and train
something smaller on top. An update is attached to the layer's own module, so strides,
groups, dilation and biases stay what they were.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fedbnn_core.arrays import Array, Arrays

__all__ = [
    "WeightUpdate",
    "attach_updates",
    "attached_updates",
    "load_frozen",
    "other_arrays",
    "weight_layers",
]

Layer = nn.Conv2d | nn.Linear
Update = TypeVar("Update", bound="WeightUpdate")

# Where torch keeps a layer's own weight once an update is attached to it.
_PREFIX = "parametrizations.weight."
_FROZEN = f"{_PREFIX}original"


class _AddInLayout(torch.autograd.Function):
    """w + u with the very strides of w.

    A plain sum of weights with one input channel falls back from channels-last to the
    default layout, and all activations behind the layer follow it: FedBAT's epoch
    would take half as long again.
    """

    @staticmethod
    def forward(ctx: Any, frozen: Tensor, update: Tensor) -> Tensor:
        return torch.add(frozen, update, out=torch.empty_like(frozen))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        return None, g


class WeightUpdate(nn.Module, ABC):
    """Adds a trained update to the frozen weight that it is attached to."""

    @abstractmethod
    def update(self) -> Tensor:
        """Return u in the weight's shape, differentiable."""

    def forward(self, frozen: Tensor) -> Tensor:
        """Return w + u in the layout of w."""
        total: Tensor = _AddInLayout.apply(frozen, self.update())  # type: ignore[no-untyped-call]
        return total


def weight_layers(model: nn.Module) -> dict[str, Layer]:
    """Return all convolutions and linear layers by name, in model order."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Layer)
    }


def attach_updates(
    model: nn.Module, make: Callable[[str, Tensor], WeightUpdate | None]
) -> None:
    """Give layers an update and freeze their weight, in place.

    Parameters
    ----------
    model : a float network.
    make : receives a layer's name and weight; None leaves the layer as it is.
    """
    for name, layer in weight_layers(model).items():
        update = make(name, layer.weight.detach())
        if update is not None:
            layer.weight.requires_grad_(False)
            parametrize.register_parametrization(layer, "weight", update)


def attached_updates(model: nn.Module, kind: type[Update]) -> dict[str, Update]:
    """Return the updates of a kind by their layer's name, in model order."""
    suffix = f".{_PREFIX}0"
    return {
        name.removesuffix(suffix): module
        for name, module in model.named_modules()
        if isinstance(module, kind)
    }


@torch.no_grad()
def load_frozen(model: nn.Module, arrays: Mapping[str, Array]) -> None:
    """Load a float network's state; weights with an update become its frozen w.

    The updates themselves are left alone.
    """
    state = model.state_dict()
    own = {_plain_name(name): name for name in state if not _is_inside_update(name)}
    if own.keys() != arrays.keys():
        raise ValueError(f"state differs in {sorted(own.keys() ^ arrays.keys())[:3]}")
    for plain, name in own.items():
        # np.array copies: arrays from a message are read-only and torch would warn.
        state[name].copy_(torch.from_numpy(np.array(arrays[plain])))


def other_arrays(model: nn.Module) -> Arrays:
    """Return the state that is neither frozen nor part of an update, as copies."""
    return {
        name: np.array(tensor.detach().cpu().contiguous().numpy())
        for name, tensor in model.state_dict().items()
        if _PREFIX not in name
    }


def _is_inside_update(name: str) -> bool:
    return _PREFIX in name and not name.endswith(_FROZEN)


def _plain_name(name: str) -> str:
    return name.removesuffix(_FROZEN) + "weight" if name.endswith(_FROZEN) else name

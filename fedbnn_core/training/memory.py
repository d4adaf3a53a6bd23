"""How much device memory a training step holds, from the network alone.

The network is traced on torch's meta device, where tensors have a shape and no memory:
the estimate takes a moment, and no GPU.
"""

import copy
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fedbnn_core.binary.model import binary_layers

__all__ = ["training_bytes"]

_WORKSPACE = 1.25
"""Beyond what is held: gradients on their way, workspaces of convolutions, gaps."""

_MIXING = 6
"""Numbers per binary weight that a device holds while it mixes all layers at once:
stacked copies of three tensors (`sign_batch`), and three on the way back."""


def training_bytes(
    make_model: Callable[[], nn.Module],
    input_shape: tuple[int, int, int],
    *,
    batch_size: int,
    momentum: bool = False,
) -> int:
    """Return about how many bytes one training step of a network needs.

    Weights, their gradients, momentum, buffers (rotations and the broadcast weights of
    binary layers), every activation that the backward pass needs, and what the mixing
    of binary weights takes.

    Parameters
    ----------
    make_model : makes the network as clients train it.
    input_shape : channels, height, width.
    batch_size : samples per step.
    momentum : whether SGD keeps one more number per weight.
    """
    model = copy.deepcopy(make_model()).to("meta").train()
    own = {id(t): t for t in (*model.parameters(), *model.buffers())}
    weights = sum(_size(t) for t in own.values())
    trained = sum(_size(p) for p in model.parameters() if p.requires_grad)
    held: dict[int, Tensor] = {}
    storages = {t.untyped_storage()._cdata for t in own.values()}

    def note(tensor: Tensor) -> Tensor:
        if tensor.device.type == "meta":
            # Kept alive, so that no later tensor gets the same number.
            held.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    images = torch.empty(batch_size, *input_shape, device="meta")
    labels = torch.empty(batch_size, dtype=torch.int64, device="meta")
    with warnings.catch_warnings(), saved_tensors_hooks(note, lambda tensor: tensor):
        warnings.simplefilter("ignore")  # a binary layer misses its clock
        F.cross_entropy(model(images), labels)
    activations = [t for number, t in held.items() if number not in storages]
    mixed = sum(_size(layer.weight) for layer in binary_layers(model).values())
    largest = max(map(_stored, activations), default=0)
    total = (
        weights
        + trained * (2 if momentum else 1)
        + sum(map(_stored, activations))
        + 2 * largest
        + _MIXING * mixed
    )
    return int(_WORKSPACE * total)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _stored(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()

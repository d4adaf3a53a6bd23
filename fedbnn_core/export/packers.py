"""Find the packer of a call, or say why it has none."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import fx, nn

from fedbnn_core.export.folding import Draft
from fedbnn_core.export.functions import FUNCTIONS, METHODS, refuse_if
from fedbnn_core.export.layers import LAYERS
from fedbnn_core.export.lowering import Lowering, Packer, PackingError
from fedbnn_core.export.trace import Traced

__all__ = ["find_packer", "is_known", "is_transparent"]

_OTHER_ACTIVATIONS = ("relu", "gelu", "silu", "elu", "sigmoid", "tanh", "softmax")


def _base(module: nn.Module) -> type[nn.Module] | None:
    """Return the known type of which a module is one, its forward pass included."""
    for kind in type(module).__mro__:
        if kind in LAYERS:
            same = type(module).forward is kind.forward
            return kind if same else None
    return None


def is_known(module: nn.Module) -> bool:
    """Say whether a module has a packer of its own."""
    return _base(module) is not None


def is_transparent(module: nn.Module | None) -> bool:
    """Say whether a module hands its input on as it is."""
    return isinstance(module, nn.Identity | nn.Dropout | nn.Dropout2d)


def find_packer(traced: Traced, node: fx.Node) -> Packer:
    """Return the packer of a call; `PackingError` says why there is none."""
    module = traced.module(node)
    if module is not None:
        base = _base(module)
        if base is None:
            raise PackingError(_unknown(type(module).__name__))
        refuse_if(
            bool(module._forward_hooks or module._forward_pre_hooks),
            "it has forward hooks, and a packed file holds no Python code",
        )
        packer: Packer = partial(_of_module, LAYERS[base], module)
        return packer
    table: dict[Any, Packer] = METHODS if node.op == "call_method" else FUNCTIONS
    if node.target not in table:
        raise PackingError(_unknown(getattr(node.target, "__name__", str(node.target))))
    return table[node.target]


def _of_module(
    packer: Callable[..., Draft], module: nn.Module, low: Lowering, x: Draft
) -> Draft:
    return packer(low, module, x)


def _unknown(name: str) -> str:
    if any(word in name.lower() for word in _OTHER_ACTIVATIONS):
        return (
            "the only non-linearity of a packed network is hardtanh, the clamp to "
            "[-1, 1]; use nn.Hardtanh"
        )
    return (
        "it has no packed form; known are binary and float convolutions, batch and "
        "layer norm, max pooling, the mean over pixels, hardtanh, linear layers, "
        "additions and constant factors per channel, flattening and dropout"
    )

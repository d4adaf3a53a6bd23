"""One binary layer, the paper's section 3.1; METHOD.md lists every equation.

The names below are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbnn_core.binary.diagnostics import LayerDiagnostics
    from fedbnn_core.binary.layer import RotatedBinaryConv2d
    from fedbnn_core.binary.mixing import mixed_weight, standardize_filters
    from fedbnn_core.binary.model import (
        begin_epoch,
        begin_round,
        binary_layers,
        deployed,
        rotations,
    )
    from fedbnn_core.binary.options import BinaryOptions
    from fedbnn_core.binary.post_training import binarize_float_model
    from fedbnn_core.binary.rotation import angular_cosine, learn_rotation, rotate
    from fedbnn_core.binary.surrogate import Sharpness, sign, surrogate_gradient

__all__ = [
    "BinaryOptions",
    "LayerDiagnostics",
    "RotatedBinaryConv2d",
    "Sharpness",
    "angular_cosine",
    "begin_epoch",
    "begin_round",
    "binarize_float_model",
    "binary_layers",
    "deployed",
    "learn_rotation",
    "mixed_weight",
    "rotate",
    "rotations",
    "sign",
    "standardize_filters",
    "surrogate_gradient",
]

_HOMES = {
    "diagnostics": ("LayerDiagnostics",),
    "layer": ("RotatedBinaryConv2d",),
    "mixing": ("mixed_weight", "standardize_filters"),
    "model": ("begin_epoch", "begin_round", "binary_layers", "deployed", "rotations"),
    "options": ("BinaryOptions",),
    "post_training": ("binarize_float_model",),
    "rotation": ("angular_cosine", "learn_rotation", "rotate"),
    "surrogate": ("Sharpness", "sign", "surrogate_gradient"),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load the module of a public name."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]

"""Post-training binarization: what is left of a float network made 1-bit at the end.

The float methods are scored twice, as trained and after this step. In every layer that
FedBNN binarizes (Eq. 28),

    w_b = (||w|| / ||sign(w)||) * sign(w),   y = conv(sign(a), w_b)

with one norm ratio per layer. Norms, head and running statistics are untouched and
nothing is trained again.
"""

import copy
from collections.abc import Collection

import torch
from torch import Tensor, nn

from fedbnn_core.binary.model import binary_layers
from fedbnn_core.binary.surrogate import sign
from fedbnn_core.errors import ConfigError

__all__ = ["binarize_float_model"]

NORMS = ("l2", "l1")


def binarize_float_model(
    model: nn.Module, *, norm: str = "l2", keep: Collection[str] = ("stem",)
) -> nn.Module:
    """Return a copy of a float network with 1-bit convolutions, Eq. 28; same state.

    Parameters
    ----------
    model : a float twin with its final weights (merge any decomposed update first).
    norm : "l2" preserves a layer's norm, its scale is ||w||_2 / sqrt(N); "l1" is the
        least-squares fit, its scale is mean |w|.
    keep : names of convolutions that stay float: the stem of ResNets and ConvNeXt.
        CNN4 has none, all its convolutions are binarized.
    """
    if norm not in NORMS:
        raise ConfigError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")
    if binary_layers(model):
        raise ConfigError(
            "post-training binarization expects a float network, got one with binary "
            "convolutions; a FedBNN model is binary already, evaluate it as it is"
        )
    binarized = copy.deepcopy(model)
    for name, module in binarized.named_modules():
        if isinstance(module, nn.Conv2d) and name not in keep:
            _binarize_weight(module, norm)
            module.register_forward_pre_hook(_sign_inputs)
    return binarized


@torch.no_grad()
def _binarize_weight(conv: nn.Conv2d, norm: str) -> None:
    w = conv.weight
    # ||sign(w)|| is sqrt(N) or N, because a 1-bit weight is never 0.
    scale = w.square().mean().sqrt() if norm == "l2" else w.abs().mean()
    w.copy_(sign(w) * scale)


def _sign_inputs(_conv: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    # torch.sign, not ours: behind a ReLU all inputs are >= 0, and with sign(0) = +1
    # every one of them would become +1 and carry nothing.
    return tuple(torch.sign(x) for x in inputs)

"""Compute the signs of all binary layers of a network before its forward pass.

On an accelerator `begin_round` hooks this in. A layer takes what is ready for it, and
computes its own sign(w~) where nothing is: on a CPU, used alone, or used twice.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fedbnn_core.binary.batched_mixing import mixed_signs
from fedbnn_core.binary.devices import layer_by_layer
from fedbnn_core.binary.layer import RotatedBinaryConv2d
from fedbnn_core.binary.mixing_plan import MixingPlan, plan_mixing

__all__ = ["SignBatch", "batch_signs"]


class SignBatch:
    """A pair of hooks around a network's forward pass.

    Parameters
    ----------
    layers : the network's binary layers.
    """

    def __init__(self, layers: Iterable[RotatedBinaryConv2d]) -> None:
        self.layers: list[RotatedBinaryConv2d] = []
        self._plan: MixingPlan | None = None
        self._planned: list[tuple[Tensor, int]] = []
        self.serve(layers)

    def serve(self, layers: Iterable[RotatedBinaryConv2d]) -> None:
        """Take other layers; those of one shape come to stand side by side."""
        able = [layer for layer in layers if layer.weights_per_filter > 1]
        self.layers = sorted(able, key=lambda layer: tuple(layer.weight.shape))

    def before(self, _model: nn.Module, _inputs: Any) -> None:
        """Make the signs ready, if the layers agree in what they need."""
        if torch.compiler.is_compiling() or not self._agree():
            return
        signs = mixed_signs(
            self._current_plan(),
            [layer.weight for layer in self.layers],
            [(layer.omega, layer.theta, layer.gamma) for layer in self.layers],
            self.layers[0].sharpness,
        )
        for layer, sign in zip(self.layers, signs, strict=True):
            layer.ready_sign = sign

    def after(self, _model: nn.Module, _inputs: Any, _outputs: Any) -> None:
        """Drop what no layer has taken."""
        for layer in self.layers:
            layer.ready_sign = None

    def _agree(self) -> bool:
        kinds = {
            (
                layer.weight.device,
                layer.weight.dtype,
                layer.options.server_alignment,
                layer.sharpness,
                layer.is_deployed,
            )
            for layer in self.layers
        }
        return len(kinds) == 1 and not self.layers[0].is_deployed

    def _current_plan(self) -> MixingPlan:
        """Return the plan, made anew if a buffer of a layer has changed."""
        buffers = [
            (layer.w_server, layer.z_server, layer.r1, layer.r2)
            for layer in self.layers
        ]
        now = [(b, b._version) for of_layer in buffers for b in of_layer]
        if self._plan is None or not _same(self._planned, now):
            alignment = self.layers[0].options.server_alignment
            self._plan = plan_mixing(buffers, server_alignment=alignment)
            self._planned = now
        return self._plan


def _same(before: list[tuple[Tensor, int]], now: list[tuple[Tensor, int]]) -> bool:
    return len(before) == len(now) and all(
        a is b and i == j for (a, i), (b, j) in zip(before, now, strict=True)
    )


def batch_signs(model: nn.Module, layers: Iterable[RotatedBinaryConv2d]) -> None:
    """Install a `SignBatch` of these layers in a model, once, unless on a CPU."""
    found = list(layers)
    if not found or layer_by_layer(found[0].weight.device):
        return
    for hook in model._forward_pre_hooks.values():
        batch = getattr(hook, "__self__", None)
        if isinstance(batch, SignBatch):
            batch.serve(found)
            return
    batch = SignBatch(found)
    model.register_forward_pre_hook(batch.before)
    model.register_forward_hook(batch.after, always_call=True)

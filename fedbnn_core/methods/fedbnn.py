"""FedBNN: real weights are averaged, their rotated signs are evaluated and deployed.

fedbnn.md sections 3 (the client's round) and 4 (the server).
"""

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedbnn_core.aggregation import Array, Arrays, ReplyArrays, normalised_weights
from fedbnn_core.binarize import Sharpness, standardize_filters
from fedbnn_core.data.batches import ClientData
from fedbnn_core.layers import (
    begin_epoch,
    begin_round,
    binary_layers,
    deployed,
    rotations,
)
from fedbnn_core.methods.base import (
    ClientUpdate,
    LazyStates,
    Method,
    RoundResult,
    load_arrays,
    state_arrays,
)
from fedbnn_core.parallel import map_in_threads
from fedbnn_core.rotation import rotate
from fedbnn_core.training import LocalTask, train_locally

__all__ = ["METHOD", "FedBNN", "mix"]

_BLOCK = 1 << 18
"""Weights of a layer that are rotated at a time."""


def mix(
    z: Tensor, rotated: Tensor, z_server: Tensor, alpha: float, beta: float
) -> Tensor:
    """Return w~ = z + alpha*beta*(w_R - z) + alpha*(1-beta)*(z_server - z).

    All three are in the standardised domain (fedbnn.md section 4).
    """
    mixed = (rotated - z).mul_(alpha * beta).add_(z)
    return mixed.add_((z_server - z).mul_(alpha * (1.0 - beta)))


class FedBNN(Method):
    """Rotation-aware binary training with two parallel models on the server."""

    binary = True
    private = True

    def evaluation_model(self) -> nn.Module:
        """Return the binary net in deployed mode: forward uses sign(weight)."""
        return deployed(self.new_model())

    def expected_reply(self) -> tuple[Arrays, Arrays]:
        """Return the binary net's state and its R1, R2."""
        model = self.new_model()
        # Kept: building a large model only to name its layers takes three times its
        # size, and that while a round's replies are in memory.
        self._layer_names = list(binary_layers(model))
        return state_arrays(model), _to_numpy(rotations(model))

    def train(
        self, model: nn.Module, broadcast: Arrays, data: ClientData, task: LocalTask
    ) -> ClientUpdate:
        """Do the client round of fedbnn.md section 3."""
        load_arrays(model, broadcast)
        begin_round(model)

        def start_epoch(epoch: int) -> None:
            begin_epoch(
                model,
                Sharpness.at(
                    task.round_index, task.num_rounds, epoch, task.local_epochs
                ),
            )

        loss = train_locally(model, data, task, begin_epoch=start_epoch)
        diagnostics = [layer.diagnostics() for layer in binary_layers(model).values()]
        return ClientUpdate(
            arrays=state_arrays(model),
            rotations=_to_numpy(rotations(model)),
            loss=loss,
            layer_metrics={
                "alpha": [d.alpha for d in diagnostics],
                "beta": [d.beta for d in diagnostics],
                "lambda": [d.lam for d in diagnostics],
                "cos-phi": [d.cos_phi for d in diagnostics],
            },
        )

    def relearn_rotations(
        self, model: nn.Module, broadcast: Arrays, arrays: Arrays, task: LocalTask
    ) -> Arrays:
        """Return R1, R2 learnt on the reply's own weights, as often as in training."""
        load_arrays(model, broadcast)
        begin_round(model)
        load_arrays(model, arrays)
        for epoch in range(task.local_epochs):
            sharpness = Sharpness.at(
                task.round_index, task.num_rounds, epoch, task.local_epochs
            )
            begin_epoch(model, sharpness)
        return _to_numpy(rotations(model))

    def combine(self, replies: Sequence[ReplyArrays], broadcast: Arrays) -> RoundResult:
        """Return w_{t+1} to broadcast, and w~, w and w_R to evaluate."""
        weights = normalised_weights(replies)
        layer_names = self._layer_names

        def combine_array(name: str) -> Array:
            return self.rule([reply.array(name) for reply in replies], weights)

        def combine_rotated(name: str) -> Array:
            return self._combine_rotated(name, replies, weights)

        state = dict(
            zip(broadcast, map_in_threads(combine_array, broadcast), strict=True)
        )
        scalars = {name: self._scalars(state, name) for name in layer_names}
        keys = [f"{name}.weight" for name in layer_names]
        rotated = dict(
            zip(keys, map_in_threads(combine_rotated, layer_names), strict=True)
        )

        def mixed() -> Arrays:
            if self.config.aggregation == "client":
                return self._mean_mixed(layer_names, replies, weights, broadcast)
            return {
                f"{name}.weight": self._mix_layer(
                    state[f"{name}.weight"],
                    rotated[f"{name}.weight"],
                    broadcast[f"{name}.weight"],
                    scalars[name],
                )
                for name in layer_names
            }

        def plain() -> Arrays:
            return {key: _standardized(state[key]).numpy() for key in keys}

        return RoundResult(
            broadcast=state,
            candidates=LazyStates(
                {
                    "mixed": lambda: state | mixed(),
                    "weights": lambda: state | plain(),
                    "rotated": lambda: state | rotated,
                }
            ),
            layers=scalars,
        )

    @cached_property
    def _layer_names(self) -> list[str]:
        return list(binary_layers(self.new_model()))

    def _combine_rotated(
        self, name: str, replies: Sequence[ReplyArrays], weights: Sequence[float]
    ) -> Array:
        """Return a layer's w_R = sum_k p_k rot_k(std(w_k)), or by a robust rule.

        A few filters of all replies at a time, so that they stay in the cache.
        """
        clients = [reply.array(f"{name}.weight") for reply in replies]
        pairs = [_rotation(name, reply) for reply in replies]
        result = np.empty_like(clients[0])
        for filters in _blocks(result):
            rotated = (
                rotate(_standardized(w[filters]), pair).numpy()
                for w, pair in zip(clients, pairs, strict=True)
            )
            result[filters] = self.rule(rotated, weights)
        return result

    def _mix_layer(
        self, w: Array, w_rotated: Array, w_server: Array, scalars: dict[str, float]
    ) -> Array:
        """Return a layer's w~ from w_{t+1}, w_R and w_t."""
        result = np.empty_like(w)
        for filters in _blocks(w):
            result[filters] = mix(
                _standardized(w[filters]),
                torch.from_numpy(w_rotated[filters]),
                _standardized(w_server[filters]),
                scalars["alpha"],
                scalars["beta"],
            ).numpy()
        return result

    def _mean_mixed(
        self,
        layer_names: Sequence[str],
        replies: Sequence[ReplyArrays],
        weights: Sequence[float],
        broadcast: Arrays,
    ) -> Arrays:
        """Return w~ = sum_k p_k w~_k, each w~_k mixed with the client's own scalars."""

        def of_client(name: str, reply: ReplyArrays) -> Array:
            key = f"{name}.weight"
            own = {
                f"{name}.{scalar}": reply.array(f"{name}.{scalar}")
                for scalar in ("omega", "theta", "gamma")
            }
            values = self._scalars(own, name)
            mixed: Array = mix(
                _standardized(reply.array(key)),
                rotate(_standardized(reply.array(key)), _rotation(name, reply)),
                _standardized(broadcast[key]),
                values["alpha"],
                values["beta"],
            ).numpy()
            return mixed

        return {
            f"{name}.weight": self.rule(
                (of_client(name, reply) for reply in replies), weights
            )
            for name in layer_names
        }

    def _scalars(self, state: Arrays, name: str) -> dict[str, float]:
        """Return a layer's lambda = sigmoid(omega), alpha = |sin theta|, beta."""
        omega, theta, gamma = (
            float(state[f"{name}.{scalar}"]) for scalar in ("omega", "theta", "gamma")
        )
        aligned = self.config.server_alignment
        return {
            "alpha": abs(math.sin(theta)),
            "beta": abs(math.sin(gamma)) if aligned else 1.0,
            # sigmoid by tanh: exp(-omega) overflows where omega is far below zero.
            "lambda": 0.5 * (1.0 + math.tanh(omega / 2.0)) if aligned else 1.0,
        }


def _blocks(weights: Array) -> list[slice]:
    """Return slices of filters with about `_BLOCK` weights each."""
    step = max(1, _BLOCK * len(weights) // max(1, weights.size))
    return [slice(start, start + step) for start in range(0, len(weights), step)]


def _to_tensor(array: Array) -> Tensor:
    # torch warns about read-only arrays, as those of a reply are.
    return torch.from_numpy(array if array.flags.writeable else np.array(array))


def _rotation(name: str, reply: ReplyArrays) -> tuple[Tensor, Tensor]:
    r1, r2 = (_to_tensor(reply.array(f"{name}.{r}")) for r in ("r1", "r2"))
    return r1, r2


def _standardized(weights: Array) -> Tensor:
    """Return std(w) per filter, as a new tensor."""
    return standardize_filters(_to_tensor(weights))


def _to_numpy(tensors: dict[str, Tensor]) -> Arrays:
    return {name: np.array(tensor.cpu().numpy()) for name, tensor in tensors.items()}


METHOD = FedBNN

"""FedBNN: real weights are averaged, their rotated signs are evaluated and deployed.

fedbnn.md sections 3 (the client's round) and 4 (the server).
"""

import math
from collections.abc import Sequence

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
from fedbnn_core.rotation import rotate
from fedbnn_core.training import LocalTask, train_locally

__all__ = ["METHOD", "FedBNN", "mix"]


def mix(
    z: Tensor, rotated: Tensor, z_server: Tensor, alpha: float, beta: float
) -> Tensor:
    """Return w~ = z + alpha*beta*(w_R - z) + alpha*(1-beta)*(z_server - z).

    All three are in the standardised domain (fedbnn.md section 4).
    """
    return z + alpha * beta * (rotated - z) + alpha * (1.0 - beta) * (z_server - z)


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
        layer_names = list(binary_layers(self.new_model()))
        state = {
            name: self.rule([reply.array(name) for reply in replies], weights)
            for name in broadcast
        }
        scalars = {name: self._scalars(state, name) for name in layer_names}
        rotated = {
            f"{name}.weight": self.rule(
                (self._rotated(name, reply) for reply in replies), weights
            )
            for name in layer_names
        }

        def mixed() -> Arrays:
            if self.config.aggregation == "client":
                return self._mean_mixed(layer_names, replies, weights, broadcast)
            return {
                key: mix(
                    _standardized(state[key]),
                    torch.from_numpy(rotated[key]),
                    _standardized(broadcast[key]),
                    scalars[name]["alpha"],
                    scalars[name]["beta"],
                ).numpy()
                for name, key in ((name, f"{name}.weight") for name in layer_names)
            }

        def plain() -> Arrays:
            return {key: _standardized(state[key]).numpy() for key in rotated}

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

    def _rotated(self, name: str, reply: ReplyArrays) -> Array:
        """Return rot_k(std(w_k)) of a layer."""
        pair = tuple(_to_tensor(reply.array(f"{name}.{r}")) for r in ("r1", "r2"))
        z = _standardized(reply.array(f"{name}.weight"))
        rotated: Array = rotate(z, (pair[0], pair[1])).numpy()
        return rotated

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
                torch.from_numpy(self._rotated(name, reply)),
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


def _to_tensor(array: Array) -> Tensor:
    # A copy: arrays of a reply are read-only, and torch would warn.
    return torch.from_numpy(np.array(array))


def _standardized(weights: Array) -> Tensor:
    """Return std(w) per filter, as a new tensor."""
    return standardize_filters(_to_tensor(weights))


def _to_numpy(tensors: dict[str, Tensor]) -> Arrays:
    return {name: np.array(tensor.cpu().numpy()) for name, tensor in tensors.items()}


METHOD = FedBNN

"""FedBNN: real weights are averaged, their rotated signs are evaluated and deployed.

fedbnn.md sections 3 (the client's round) and 4 (the server).
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedbnn_core.aggregation import (
    Array,
    Arrays,
    ReplyArrays,
    mean_array,
    normalised_weights,
)
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

    def combine(self, replies: Sequence[ReplyArrays], broadcast: Arrays) -> RoundResult:
        """Return w_{t+1} to broadcast, and w~, w and w_R to evaluate."""
        weights = normalised_weights(replies)
        layer_names = list(binary_layers(self.new_model()))
        conv_weights = {f"{name}.weight" for name in layer_names}
        state = {
            name: mean_array((reply.array(name) for reply in replies), weights)
            for name in broadcast
            if name not in conv_weights
        }
        mixed, plain, rotated = dict(state), dict(state), dict(state)
        layers = {}
        for name in layer_names:
            key = f"{name}.weight"
            w_next, w_rotated, w_mixed = self._combine_layer(
                name, replies, weights, broadcast[key]
            )
            state[key] = w_next
            z = standardize_filters(torch.from_numpy(w_next))
            scalars = self._scalars(state, name)
            if w_mixed is None:
                z_server = standardize_filters(torch.from_numpy(broadcast[key]))
                w_mixed = mix(z, w_rotated, z_server, scalars["alpha"], scalars["beta"])
            mixed[key], plain[key] = w_mixed.numpy(), z.numpy()
            rotated[key] = w_rotated.numpy()
            layers[name] = scalars
        return RoundResult(
            broadcast={name: state[name] for name in broadcast},
            candidates={"mixed": mixed, "weights": plain, "rotated": rotated},
            layers=layers,
        )

    def _combine_layer(
        self,
        name: str,
        replies: Sequence[ReplyArrays],
        weights: Sequence[float],
        w_server: Array,
    ) -> tuple[Array, Tensor, Tensor | None]:
        """Return a layer's w_{t+1}, w_R and, if averaged from the clients', its w~.

        w_R = sum_k p_k rot_k(std(w_k)); with ``aggregation = "client"`` also
        w~ = sum_k p_k w~_k, each w~_k mixed with the client's own scalars.
        """
        w_rotated = torch.zeros(w_server.shape, dtype=torch.float64)
        per_client = self.config.aggregation == "client"
        w_mixed = torch.zeros_like(w_rotated) if per_client else None
        z_server = standardize_filters(torch.from_numpy(np.array(w_server)))

        def add_rotated(k: int, w_client: Array) -> None:
            z = standardize_filters(torch.from_numpy(np.asarray(w_client)))
            pair = tuple(
                torch.from_numpy(np.array(replies[k].array(f"{name}.{r}")))
                for r in ("r1", "r2")
            )
            rotated = rotate(z, (pair[0], pair[1]))
            w_rotated.add_(rotated, alpha=weights[k])
            if w_mixed is not None:
                scalars = {
                    f"{name}.{s}": replies[k].array(f"{name}.{s}")
                    for s in ("omega", "theta", "gamma")
                }
                values = self._scalars(scalars, name)
                w_client_mixed = mix(
                    z, rotated, z_server, values["alpha"], values["beta"]
                )
                w_mixed.add_(w_client_mixed, alpha=weights[k])

        w_next = mean_array(
            (reply.array(f"{name}.weight") for reply in replies),
            weights,
            also=add_rotated,
        )
        return w_next, w_rotated.float(), None if w_mixed is None else w_mixed.float()

    def _scalars(self, state: Arrays, name: str) -> dict[str, float]:
        """Return a layer's lambda = sigmoid(omega), alpha = |sin theta|, beta."""
        omega, theta, gamma = (
            float(state[f"{name}.{scalar}"]) for scalar in ("omega", "theta", "gamma")
        )
        aligned = self.config.server_alignment
        return {
            "alpha": abs(math.sin(theta)),
            "beta": abs(math.sin(gamma)) if aligned else 1.0,
            "lambda": 1.0 / (1.0 + math.exp(-omega)) if aligned else 1.0,
        }


def _to_numpy(tensors: dict[str, Tensor]) -> Arrays:
    return {name: np.array(tensor.cpu().numpy()) for name, tensor in tensors.items()}


METHOD = FedBNN

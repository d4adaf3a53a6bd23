"""FedBNN: real weights are averaged, their rotated signs are evaluated and deployed.

`FedBNN.train` is the client's half and `FedBNN.aggregate` the server's half of the
paper's Algorithm 1; binary/METHOD.md has both in full.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedbnn_core.aggregation.mean import ReplyArrays, mean_array, normalized_weights
from fedbnn_core.aggregation.rotated_mean import filter_blocks, rotated_mean
from fedbnn_core.aggregation.threads import map_in_threads
from fedbnn_core.arrays import Array, Arrays, shapes_of
from fedbnn_core.binary.mixing import (
    fused_weight,
    mixed_weight,
    mixing_scalars,
    standardize_filters,
    standardize_in_place,
)
from fedbnn_core.binary.model import (
    begin_epoch,
    begin_round,
    binary_layers,
    deployed,
    rotations,
)
from fedbnn_core.binary.rotation import Rotation, learn_anew, rotate, round_start
from fedbnn_core.binary.surrogate import Sharpness
from fedbnn_core.config import RunConfig
from fedbnn_core.data.batches import ClientData
from fedbnn_core.methods.base import ClientUpdate, LazyStates, Method, RoundResult
from fedbnn_core.methods.template import PerClientBytes, Template
from fedbnn_core.networks.state import load_arrays, state_arrays
from fedbnn_core.seeding import derive_seed
from fedbnn_core.training.local import LocalTask, train_locally
from fedbnn_core.wire.run_wire import FLOAT_BITS

__all__ = ["METHOD", "FedBNN"]


class FedBNN(Method):
    """Rotation-aware binary training with two parallel models on the server."""

    title = "FedBNN"
    binary = True
    replies_with_state = True

    def __init__(
        self, config: RunConfig, input_shape: tuple[int, int, int], num_classes: int
    ) -> None:
        super().__init__(config, input_shape, num_classes)
        self._served: Arrays = {}
        """The average of the served weights, where one is kept."""

    def evaluation_model(self) -> nn.Module:
        """Return the binary net in deployed mode: forward uses sign(weight)."""
        return deployed(self.new_model())

    def describe(self, network: nn.Module) -> Template:
        """Return the binary net's state both ways, and R1, R2 with a float reply.

        At few bits R would be up to a third of it: the server learns R itself.
        """
        template = super().describe(network)
        if not self._sends_rotations:
            return template
        extra = shapes_of(_to_numpy(rotations(network)))
        full = template.nominal_bytes
        up = full.up + 4 * sum(array.size for array in extra.values())
        return replace(
            template, rotations=extra, nominal_bytes=PerClientBytes(up, full.down)
        )

    def train(
        self, model: nn.Module, broadcast: Arrays, data: ClientData, task: LocalTask
    ) -> ClientUpdate:
        """Do one client round: freeze w_t, then rotate and train epoch by epoch."""
        load_arrays(model, broadcast)
        begin_round(model)

        def start_epoch(epoch: int) -> None:
            begin_epoch(
                model,
                Sharpness.at(
                    task.round_index, task.num_rounds, epoch, task.local_epochs
                ),
                seed=derive_seed(
                    task.seed, "rounding", task.round_index, task.partition_id, epoch
                ),
            )

        loss = train_locally(model, data, task, begin_epoch=start_epoch)
        diagnostics = [layer.diagnostics() for layer in binary_layers(model).values()]
        return ClientUpdate(
            arrays=state_arrays(model),
            rotations=_to_numpy(rotations(model)) if self._sends_rotations else {},
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

    def aggregate(
        self, replies: Sequence[ReplyArrays], broadcast: Arrays
    ) -> RoundResult:
        """Return w_{t+1} to broadcast, and w~, w and w_R to evaluate."""
        weights = normalized_weights(replies)
        state = self.aggregate_arrays(broadcast, replies, weights)
        scalars = {name: self._scalars(state, name) for name in self._layer_names}

        def each_layer(weight_of: Callable[[str], Array]) -> Arrays:
            arrays = map_in_threads(weight_of, self._layer_names)
            keys = (f"{name}.weight" for name in self._layer_names)
            return dict(zip(keys, arrays, strict=True))

        # Only an evaluation needs it: a round without one does not pay for it.
        @cache
        def rotated() -> Arrays:
            return each_layer(
                lambda n: self._aggregate_rotated(n, replies, weights, broadcast)
            )

        def of_this_round() -> Arrays:
            if self.config.aggregation == "client":
                return each_layer(
                    lambda n: self._mean_mixed(n, replies, weights, broadcast)
                )
            turned = rotated()
            return each_layer(
                lambda n: self._mix_layer(
                    state[f"{n}.weight"],
                    turned[f"{n}.weight"],
                    broadcast[f"{n}.weight"],
                    scalars[n],
                )
            )

        def mixed() -> Arrays:
            return state | of_this_round()

        if self.config.served_average:
            self._served = _averaged(self._served, mixed(), self.config.served_average)

        def plain() -> Arrays:
            return each_layer(lambda n: _standardized(state[f"{n}.weight"]).numpy())

        return RoundResult(
            broadcast=state,
            candidates=LazyStates(
                {
                    "mixed": lambda: self._served or mixed(),
                    "weights": lambda: state | plain(),
                    "rotated": lambda: state | rotated(),
                }
            ),
            layers=scalars,
        )

    def server_state(self) -> Arrays:
        """Return the average of the served weights, where one is kept."""
        return self._served

    def load_server_state(self, state: Arrays) -> None:
        """Restore what `server_state` returned."""
        self._served = state

    @property
    def _sends_rotations(self) -> bool:
        return self.config.uplink_bits == FLOAT_BITS

    @cached_property
    def _layer_names(self) -> list[str]:
        names = self.template.broadcast
        return [n.removesuffix(".omega") for n in names if n.endswith(".omega")]

    def _aggregate_rotated(
        self,
        name: str,
        replies: Sequence[ReplyArrays],
        weights: Sequence[float],
        broadcast: Arrays,
    ) -> Array:
        """Return a layer's w_R = sum_k p_k rot_k(std(w_k)), or by a robust rule."""
        clients = [reply.array(f"{name}.weight") for reply in replies]
        pairs = [self._rotation(name, reply, broadcast) for reply in replies]
        if self.rule is mean_array:
            return rotated_mean(clients, pairs, weights)
        result = np.empty_like(clients[0])
        for filters in filter_blocks(result):
            rotated = (
                rotate(_standardized(w[filters]), pair).numpy()
                for w, pair in zip(clients, pairs, strict=True)
            )
            result[filters] = self.rule(rotated, weights)
        return result

    def _rotation(self, name: str, reply: ReplyArrays, broadcast: Arrays) -> Rotation:
        """Return a layer's (R1, R2) of a client, sent or learnt from its weights."""
        if self._sends_rotations:
            # Copied: a matrix product may round differently where it is not aligned.
            r1, r2 = (reply.array(f"{name}.{r}") for r in ("r1", "r2"))
            return torch.tensor(r1), torch.tensor(r2)
        key, config = f"{name}.weight", self.config
        fused = fused_weight(
            torch.tensor(reply.array(key)),
            torch.tensor(broadcast[key]),
            torch.tensor(self._own_scalars(name, reply)["lambda"]),
        )
        native = config.gradient_bits < 32
        start = round_start(
            _standardized(broadcast[key]),
            start=config.rotation_start,
            seed=(config.seed, *broadcast[key].shape),
            native=native,
        )
        iterations, times = config.rotation_iterations, config.local_epochs
        z = standardize_filters(fused)
        return learn_anew(z, start, iterations=iterations, times=times, native=native)

    def _mix_layer(
        self, w: Array, w_rotated: Array, w_server: Array, scalars: dict[str, float]
    ) -> Array:
        """Return a layer's w~ from w_{t+1}, w_R and w_t."""
        result = np.empty_like(w)
        for filters in filter_blocks(w):
            result[filters] = mixed_weight(
                _standardized(w[filters]),
                torch.from_numpy(w_rotated[filters]),
                _standardized(w_server[filters]),
                scalars["alpha"],
                scalars["beta"],
            ).numpy()
        return result

    def _mean_mixed(
        self,
        name: str,
        replies: Sequence[ReplyArrays],
        weights: Sequence[float],
        broadcast: Arrays,
    ) -> Array:
        """Return w~ = sum_k p_k w~_k, Eq. 27, each mixed with the client's scalars."""
        key = f"{name}.weight"

        def of_client(reply: ReplyArrays) -> Array:
            values = self._own_scalars(name, reply)
            rotation = self._rotation(name, reply, broadcast)
            mixed: Array = mixed_weight(
                _standardized(reply.array(key)),
                rotate(_standardized(reply.array(key)), rotation),
                _standardized(broadcast[key]),
                values["alpha"],
                values["beta"],
            ).numpy()
            return mixed

        return self.rule((of_client(reply) for reply in replies), weights)

    def _own_scalars(self, name: str, reply: ReplyArrays) -> dict[str, float]:
        keys = [f"{name}.{scalar}" for scalar in ("omega", "theta", "gamma")]
        return self._scalars({key: reply.array(key) for key in keys}, name)

    def _scalars(self, state: Arrays, name: str) -> dict[str, float]:
        """Return a layer's lambda = sigmoid(omega), alpha = |sin theta|, beta."""
        omega, theta, gamma = (
            float(state[f"{name}.{scalar}"]) for scalar in ("omega", "theta", "gamma")
        )
        scalars = mixing_scalars(
            omega, theta, gamma, server_alignment=self.config.server_alignment
        )
        return {"alpha": scalars.alpha, "beta": scalars.beta, "lambda": scalars.lam}


def _averaged(earlier: Arrays, state: Arrays, share: float) -> Arrays:
    """Return share * earlier + (1 - share) * state; counters are those of ``state``."""
    if not earlier:
        return state
    return {
        name: (share * earlier[name] + (1.0 - share) * array).astype(array.dtype)
        if np.issubdtype(array.dtype, np.floating)
        else array
        for name, array in state.items()
    }


def _standardized(weights: Array) -> Tensor:
    """Return std(w) per filter, as a new tensor."""
    return standardize_in_place(torch.tensor(weights))[0]


def _to_numpy(tensors: dict[str, Tensor]) -> Arrays:
    return {name: np.array(tensor.cpu().numpy()) for name, tensor in tensors.items()}


METHOD = FedBNN

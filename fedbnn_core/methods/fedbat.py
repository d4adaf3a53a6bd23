"""FedBAT: clients train 1-bit updates of a float network and send their signs.

The method of the ICML 2024 paper of that name. The upload is one bit per conv and
linear weight and one step size per layer; norms, running statistics and biases go as
float32.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from torch import nn

from fedbnn_core.aggregation.mean import ReplyArrays, normalized_weights
from fedbnn_core.aggregation.norms import update_norm
from fedbnn_core.arrays import Arrays
from fedbnn_core.data.batches import ClientData, batch_sizes
from fedbnn_core.errors import ReplyError, WireError
from fedbnn_core.methods.base import (
    ClientUpdate,
    FloatMethod,
    RoundResult,
)
from fedbnn_core.methods.template import PerClientBytes, Template
from fedbnn_core.seeding import derive_seed
from fedbnn_core.training.local import LocalTask, train_locally
from fedbnn_core.training.sign_update import (
    MAX_STEP_SIZE,
    MIN_STEP_SIZE,
    BinaryUpdate,
)
from fedbnn_core.training.weight_update import (
    attach_updates,
    attached_updates,
    load_frozen,
    other_arrays,
    weight_layers,
)
from fedbnn_core.wire.signs import STEP_SIZES, SignCodec

__all__ = ["METHOD", "FedBAT"]


class FedBAT(FloatMethod):
    """w_{t+1} = w_t + sum_k p_k alpha_k (2 b_k - 1); the mean of all else."""

    title = "FedBAT"

    def new_model(self) -> nn.Module:
        """Return the float network with a binary update on every conv and linear."""
        model = self.initial_model()
        attach_updates(model, lambda _, w: BinaryUpdate(w, rho=self.config.fedbat_rho))
        return model

    def describe(self, network: nn.Module) -> Template:
        """Reply with packed signs, step sizes and all other arrays as they are.

        Nominally 1 bit per weight, 4 bytes per step size and other trained number.
        """
        template = super().describe(network)
        layers = [f"{name}.weight" for name in weight_layers(network)]
        weights = sum(template.reply[name].size for name in layers)
        full = template.nominal_bytes
        up = full.up - 4 * weights + (weights + 7) // 8 + 4 * len(layers)
        nominal = PerClientBytes(up=up, down=full.down)
        codec = SignCodec(template.reply, layers)
        return replace(template, reply=codec.sent, nominal_bytes=nominal)

    def update_norm(self, arrays: Arrays, broadcast: Arrays) -> float:
        """Count alpha sqrt(N) for a layer of N signs; refuse what no client sends."""
        try:
            self._codec.check(arrays)
        except WireError as error:
            raise ReplyError(str(error)) from error
        alphas = arrays[STEP_SIZES]
        low, high = np.float32(MIN_STEP_SIZE), np.float32(MAX_STEP_SIZE)
        if alphas.min() < low or alphas.max() > high:
            raise ReplyError(
                f"its step sizes must be between {MIN_STEP_SIZE:g} and "
                f"{MAX_STEP_SIZE:g}, got {alphas.min():.4g} to {alphas.max():.4g}"
            )
        others = {name: array for name, array in arrays.items() if name in broadcast}
        squares = (
            float(alphas[index]) ** 2 * broadcast[name].size
            for name, index in self._codec.positions.items()
        )
        return math.hypot(update_norm(others, broadcast), math.sqrt(sum(squares)))

    def train(
        self, model: nn.Module, broadcast: Arrays, data: ClientData, task: LocalTask
    ) -> ClientUpdate:
        """Train real updates for the warm-up, binary ones for the rest of the round."""
        load_frozen(model, broadcast)
        updates = attached_updates(model, BinaryUpdate)
        for name, update in updates.items():
            update.begin_round(
                derive_seed(
                    task.seed, "fedbat", task.round_index, task.partition_id, name
                )
            )
        steps = len(batch_sizes(len(data), task.batch_size)) * task.local_epochs
        warm_up = int(self.config.fedbat_warm_up * steps)

        def after_step(done: int) -> None:
            if done == warm_up:
                for update in updates.values():
                    update.begin_signs()

        after_step(0)
        loss = train_locally(model, data, task, after_step=after_step)
        return ClientUpdate(arrays=_encode(model), loss=loss)

    def aggregate(
        self, replies: Sequence[ReplyArrays], broadcast: Arrays
    ) -> RoundResult:
        """Add the mean of the decoded updates to the weights, average all else."""
        weights = normalized_weights(replies)
        step_sizes = [reply.array(STEP_SIZES) for reply in replies]
        codec = self._codec
        state = {}
        for name, w in broadcast.items():
            if name not in codec.positions:
                arrays = (reply.array(name) for reply in replies)
                state[name] = self.rule(arrays, weights)
                continue
            updates = (
                codec.update(name, reply.array(codec.signs(name)), alphas)
                for reply, alphas in zip(replies, step_sizes, strict=True)
            )
            state[name] = w + self.rule(updates, weights)
        return RoundResult(broadcast=state, candidates={"float": state})

    @cached_property
    def _codec(self) -> SignCodec:
        """How a reply travels."""
        start, sent = self.template.broadcast, self.template.reply
        return SignCodec(start, [name for name in start if name not in sent])


def _encode(model: nn.Module) -> Arrays:
    """Return a reply: the signs of one more draw, and all else as it is."""
    arrays, weights = other_arrays(model), []
    for name, update in attached_updates(model, BinaryUpdate).items():
        positive, alpha = update.draw()
        weights.append(f"{name}.weight")
        arrays[weights[-1]] = np.where(positive, alpha, -alpha)
    return SignCodec(arrays, weights).encode(arrays)


METHOD = FedBAT

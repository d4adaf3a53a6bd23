"""FedMUD: clients train small factors of a structured update and send those.

The method of the ICML 2025 paper of that name in its strongest form: model update
decomposition with block-wise Kronecker products and frozen halves. The first and the
last layer, norms and biases are trained and sent in full. Clients keep nothing between
rounds, so the broadcast holds W0 itself; a client that tracked W0 would need only the
averaged factors, which is the nominal downlink.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedbnn_core.aggregation.mean import ReplyArrays, normalized_weights
from fedbnn_core.aggregation.norms import update_norm
from fedbnn_core.arrays import Arrays
from fedbnn_core.data.batches import ClientData
from fedbnn_core.methods.base import (
    ClientUpdate,
    FloatMethod,
    RoundResult,
)
from fedbnn_core.methods.template import PerClientBytes, Template
from fedbnn_core.seeding import derive_seed
from fedbnn_core.training.kronecker_update import (
    Blocks,
    KroneckerUpdate,
    choose_blocks,
    frozen_factors,
    kronecker_update,
)
from fedbnn_core.training.local import LocalTask, train_locally
from fedbnn_core.training.weight_update import (
    attach_updates,
    attached_updates,
    load_frozen,
    other_arrays,
)
from fedbnn_core.wire.factors import FactorCodec, factor_keys

__all__ = ["METHOD", "FedMUD"]

CLOCK = "fedmud-clock"
"""Key of the broadcast's int64 (2,): seed of the frozen factors, round from 0."""


class FedMUD(FloatMethod):
    """Forward with W0 + D; at every reset W0 += D and D starts again at zero.

    The seeds of the frozen factors follow from the run's seed. The official code draws
    one in [0, 2024] per round and from it one in [1, 999) per layer, and starts with
    1234: other random numbers of the same distribution.
    """

    title = "FedMUD"

    def new_model(self) -> nn.Module:
        """Return the float network with factors on all layers but first and last."""
        model = self.initial_model()
        blocks = choose_blocks(model, self.config.fedmud_ratio)

        def factors(name: str, w: Tensor) -> KroneckerUpdate | None:
            return KroneckerUpdate(w, blocks[name]) if name in blocks else None

        attach_updates(model, factors)
        return model

    def describe(self, network: nn.Module) -> Template:
        """Send W0 and a seed; reply with factors and all that is not decomposed.

        Nominally what is trained, both ways, and a seed down.
        """
        template = super().describe(network)
        blocks = choose_blocks(network, self.config.fedmud_ratio)
        up = template.nominal_bytes.up
        for name, layer in blocks.items():
            up += 4 * (layer.trained - template.reply[f"{name}.weight"].size)
        return Template(
            broadcast=self._broadcast(template.broadcast, round_index=0),
            reply=FactorCodec(template.reply, blocks).sent,
            nominal_bytes=PerClientBytes(up=up, down=up + 8),
            parameters=template.parameters,
        )

    @cached_property
    def _blocks(self) -> dict[str, Blocks]:
        """Return the decomposed layers' blocks, in model order."""
        sizes = {
            layer: self.template.reply[key].shape
            for name in self.template.broadcast
            if (key := factor_keys(layer := name.removesuffix(".weight"))[0])
            in self.template.reply
        }
        return {layer: Blocks(count, size) for layer, (count, size, _) in sizes.items()}

    def paper_memory_extra(self) -> int:
        """Count trained and frozen factors, which the paper does for CNN4 only."""
        if self.config.model != "cnn4":
            return 0
        return 2 * sum(blocks.trained for blocks in self._blocks.values())

    def update_norm(self, arrays: Arrays, broadcast: Arrays) -> float:
        """Count D - D_0, which is linear in the factors, and all else as it is."""
        frozen = self._frozen(broadcast, self._blocks)
        others, factors = _divide(arrays, list(frozen))
        _, before = _divide(broadcast, list(frozen))
        total = update_norm(others, broadcast)
        for name, (a, b) in factors.items():
            if name in before:
                a, b = a - before[name][0], b - before[name][1]
            shape = torch.Size(broadcast[f"{name}.weight"].shape)
            change = kronecker_update((a, b), frozen[name], shape)
            total = math.hypot(total, update_norm({name: change.numpy()}, {}))
        return total

    def train(
        self, model: nn.Module, broadcast: Arrays, data: ClientData, task: LocalTask
    ) -> ClientUpdate:
        """Grow the frozen factors from the seed, train the others."""
        updates = attached_updates(model, KroneckerUpdate)
        state, factors = _divide(broadcast, list(updates))
        load_frozen(model, state)
        blocks = {name: update.blocks for name, update in updates.items()}
        frozen = self._frozen(broadcast, blocks)
        for name, update in updates.items():
            update.begin_round(frozen[name], factors.get(name))
        loss = train_locally(model, data, task)
        return ClientUpdate(arrays=_encode(model), loss=loss)

    def aggregate(
        self, replies: Sequence[ReplyArrays], broadcast: Arrays
    ) -> RoundResult:
        """Average what was sent; evaluate W0 + D; at a reset broadcast it as W0."""
        weights = normalized_weights(replies)
        frozen = self._frozen(broadcast, self._blocks)
        decomposed = {f"{name}.weight" for name in frozen}
        state, _ = _divide(broadcast, list(frozen))
        sent = [name for name in state if name not in decomposed]
        sent += [key for name in frozen for key in factor_keys(name)]
        mean = {
            name: self.rule((reply.array(name) for reply in replies), weights)
            for name in sent
        }
        others, factors = _divide(mean, list(frozen))
        base = state | others
        merged = dict(base)
        for name, trained in factors.items():
            w = base[f"{name}.weight"]
            update = kronecker_update(trained, frozen[name], torch.Size(w.shape))
            merged[f"{name}.weight"] = w + update.numpy()
        seed, round_index = (int(value) for value in broadcast[CLOCK])
        if (round_index + 1) % self.config.fedmud_reset_every == 0:
            following = self._broadcast(merged, round_index=round_index + 1)
        else:
            clock = np.array([seed, round_index + 1], np.int64)
            following = base | mean | {CLOCK: clock}
        return RoundResult(broadcast=following, candidates={"float": merged})

    def _broadcast(self, w0: Arrays, *, round_index: int) -> Arrays:
        seed = derive_seed(self.config.seed, "fedmud", round_index)
        return w0 | {CLOCK: np.array([seed, round_index], np.int64)}

    def _frozen(
        self, broadcast: Arrays, blocks: Mapping[str, Blocks]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        seed = int(broadcast[CLOCK][0])
        return frozen_factors(blocks, seed, self.config.fedmud_magnitude)


def _encode(model: nn.Module) -> Arrays:
    """Return a reply: the trained factors, and all that is not decomposed."""
    arrays, blocks = other_arrays(model), {}
    for name, update in attached_updates(model, KroneckerUpdate).items():
        pair = torch.stack((update.a, update.b)).detach().cpu().numpy()
        arrays[f"{name}.weight"], blocks[name] = pair, update.blocks
    return FactorCodec(arrays, blocks).encode(arrays)


def _divide(
    arrays: Arrays, layers: Sequence[str]
) -> tuple[Arrays, dict[str, tuple[Tensor, Tensor]]]:
    """Return the float network's own arrays, and A and B where they are sent."""
    own, factors = dict(arrays), {}
    own.pop(CLOCK, None)
    for name in layers:
        a, b = factor_keys(name)
        if a in own:
            pair = (np.array(own.pop(a)), np.array(own.pop(b)))
            factors[name] = (torch.from_numpy(pair[0]), torch.from_numpy(pair[1]))
    return own, factors


METHOD = FedMUD

"""What every federated method has to say: the client's half and the server's half."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import nn

from fedbnn_core.aggregation.mean import ReplyArrays
from fedbnn_core.aggregation.norms import update_norm
from fedbnn_core.aggregation.robust import aggregation_rule
from fedbnn_core.aggregation.threads import map_in_threads
from fedbnn_core.arrays import Array, Arrays, shapes_of
from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.binary.post_training import binarize_float_model
from fedbnn_core.config import RunConfig
from fedbnn_core.data.batches import ClientData
from fedbnn_core.methods.template import PerClientBytes, Template
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.networks.state import state_arrays
from fedbnn_core.seeding import derive_seed
from fedbnn_core.training.local import LocalTask, prefer_channels_last
from fedbnn_core.wire.container import container_bytes
from fedbnn_core.wire.run_wire import FLOAT_BITS, RunWire

__all__ = [
    "ClientUpdate",
    "FloatMethod",
    "LazyStates",
    "Method",
    "RoundResult",
]


@dataclass(frozen=True)
class ClientUpdate:
    """What a client sends back."""

    arrays: Arrays
    """The trained state, in the method's own encoding."""
    rotations: Arrays = field(default_factory=dict)
    """R1 and R2 of every binary layer; empty for other methods."""
    loss: float | None = 0.0
    """Mean training loss of the last local epoch; None if it is kept private."""
    layer_metrics: dict[str, list[float]] = field(default_factory=dict)
    """Per-layer metrics by name, one number per binary layer in model order."""


class LazyStates(Mapping[str, Arrays]):
    """States that are made anew whenever they are asked for, to save memory.

    Parameters
    ----------
    makers : a function for every state, by name.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Arrays]]) -> None:
        self._makers = makers

    def __getitem__(self, name: str) -> Arrays:
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@dataclass(frozen=True)
class RoundResult:
    """What the server makes of a round's replies."""

    broadcast: Arrays
    """The state sent to the clients of the next round."""
    candidates: Mapping[str, Arrays]
    """States of the evaluation model to be scored; the first one is the product."""
    layers: dict[str, dict[str, float]] = field(default_factory=dict)
    """Metrics of each binary layer, from the aggregated state."""


class Method(ABC):
    """One federated method for one run."""

    title: str
    """Its name as people write it."""
    binary: bool
    """Whether it trains the binary net or the float twin."""
    replies_with_state = False
    """Whether a reply is a state like the broadcast: that can be clipped and noised."""

    def __init__(
        self, config: RunConfig, input_shape: tuple[int, int, int], num_classes: int
    ) -> None:
        self.config = config
        self.rule = aggregation_rule(config)
        """Makes one array of the same array of all replies; `aggregate` uses it."""
        self.spec = ModelSpec(
            name=config.model,
            input_shape=input_shape,
            num_classes=num_classes,
            binary=self.binary,
            width=config.model_width,
            pool_before_bn=config.pool_before_bn,
            float_first=config.float_first,
            options=BinaryOptions(
                activation=config.activation,
                rotation_start=config.rotation_start,
                rotation_iterations=config.rotation_iterations,
                server_alignment=config.server_alignment,
                gradient_bits=config.gradient_bits,
                initial_std=config.initial_std,
                omega_start=config.omega_start,
                seed=config.seed,
            ),
        )

        self._unused: nn.Module | None = None

    @cached_property
    def template(self) -> Template:
        """The first broadcast and the shape of every reply, made once."""
        network = self.initial_model()
        template = self.describe(network)
        self._unused = network
        return template

    def describe(self, network: nn.Module) -> Template:
        """Return what the method's messages look like; by default a state each way.

        Parameters
        ----------
        network : that of `initial_model`; it must stay as it is.
        """
        state = state_arrays(network)
        trained = sum(p.numel() for p in network.parameters())
        return Template(
            broadcast=state,
            reply=shapes_of(state),
            nominal_bytes=PerClientBytes(up=4 * trained, down=4 * trained),
            parameters=trained,
        )

    @cached_property
    def wire(self) -> RunWire:
        """How the messages are coded; with 32 bits both ways they are not.

        Who needs it and a network asks for it first: both share one network.
        """
        up, down = self.config.uplink_bits, self.config.downlink_bits
        is_coded = min(up, down) < FLOAT_BITS
        return RunWire(
            self.template.broadcast if is_coded else {},
            seed=self.config.seed,
            uplink_bits=up,
            downlink_bits=down,
        )

    @cached_property
    def message_bytes(self) -> PerClientBytes:
        """The arrays of one client's messages as they travel, headers included."""
        template, wire = self.template, self.wire
        up = container_bytes(wire.reply_arrays or template.reply)
        return PerClientBytes(
            up=up + container_bytes(template.rotations),
            down=container_bytes(wire.order_arrays or template.broadcast),
        )

    @cached_property
    def nominal_bytes(self) -> PerClientBytes:
        """The traffic as papers count it; what is coded counts in full."""
        nominal, wire = self.template.nominal_bytes, self.wire
        up, down = (
            full if sent is None else sum(array.nbytes for array in sent.values())
            for full, sent in (
                (nominal.up, wire.reply_arrays),
                (nominal.down, wire.order_arrays),
            )
        )
        return PerClientBytes(up=up, down=down)

    def initial_model(self) -> nn.Module:
        """Return the network of `spec` with the run's initial weights.

        The one that `template` was read from is handed out first: a server that needs
        both builds one network.
        """
        network, self._unused = self._unused, None
        if network is not None:
            return network
        seed = derive_seed(self.config.seed, "initial weights")
        return prefer_channels_last(build_model(self.spec, seed=seed))

    def new_model(self) -> nn.Module:
        """Return the network that clients train."""
        return self.initial_model()

    def evaluation_model(self) -> nn.Module:
        """Return the network that `RoundResult.candidates` are loaded into."""
        return self.initial_model()

    def final_variants(self, model: nn.Module) -> dict[str, nn.Module]:
        """Return other forms of the finished model that are scored on the test half.

        Each becomes ``<name>_test_accuracy`` in the run's summary.

        Parameters
        ----------
        model : the evaluation model with the state of the best round.
        """
        return {}

    def paper_memory_extra(self) -> int:
        """Return the numbers that the paper's memory rule counts beyond the model's."""
        return 0

    def update_norm(self, arrays: Arrays, broadcast: Arrays) -> float:
        """Return the L2 norm of the update that a reply's arrays stand for.

        Raises
        ------
        ReplyError
            The values are not ones that the method's clients can send.
        """
        return update_norm(arrays, broadcast)

    @abstractmethod
    def train(
        self, model: nn.Module, broadcast: Arrays, data: ClientData, task: LocalTask
    ) -> ClientUpdate:
        """Do one client round with a model of `new_model`."""

    @abstractmethod
    def aggregate(
        self, replies: Sequence[ReplyArrays], broadcast: Arrays
    ) -> RoundResult:
        """Aggregate the replies to ``broadcast``, given in partition order."""

    def aggregate_arrays(
        self,
        names: Iterable[str],
        replies: Sequence[ReplyArrays],
        weights: Sequence[float],
    ) -> Arrays:
        """Aggregate each of the named arrays by the run's rule."""

        def of_name(name: str) -> Array:
            return self.rule([reply.array(name) for reply in replies], weights)

        names = list(names)
        return dict(zip(names, map_in_threads(of_name, names), strict=True))

    def relearn_rotations(
        self, model: nn.Module, broadcast: Arrays, arrays: Arrays, task: LocalTask
    ) -> Arrays:
        """Return the rotations that follow from a reply's arrays alone.

        A private client sends these: rotations learnt while training would tell about
        its data beyond the noise. Methods without rotations return none.
        """
        return {}

    def server_state(self) -> Arrays:
        """Return what the server half keeps between rounds, for a checkpoint."""
        return {}

    def load_server_state(self, state: Arrays) -> None:
        """Restore what `server_state` returned."""
        if state:
            raise ValueError(f"{self.config.method} keeps no state, got {list(state)}")


class FloatMethod(Method):
    """A method that trains the float twin; it is also scored after binarization."""

    binary = False

    def final_variants(self, model: nn.Module) -> dict[str, nn.Module]:
        """Return the model binarized after training by l2 and by l1 scales."""
        with torch.device("meta"):
            twin = build_model(replace(self.spec, binary=True))
        # What stays float in the binary twin stays so here.
        keep = [n for n, part in twin.named_modules() if isinstance(part, nn.Conv2d)]
        return {
            "ptb": binarize_float_model(model, norm="l2", keep=keep),
            "ptb_l1": binarize_float_model(model, norm="l1", keep=keep),
        }

"""The typed configuration of a run, parsed once from ``[tool.flwr.app.config]``.

Keys are kebab-case in TOML and snake_case here. Defaults live in ``pyproject.toml``
only; `default_mapping` reads them. An unknown key, a wrong type or a value out of
range is a `ConfigError` that names the valid choices.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from fedbnn_core.choices import (
    ACTIVATIONS,
    AGGREGATIONS,
    DOWNLINK_BITS,
    GRADIENT_BITS,
    LR_SCHEDULES,
    MODELS,
    PARTITION_SCHEMES,
    PRIVACY_MODES,
    ROBUST_RULES,
    ROTATION_STARTS,
    SERVED_STATISTICS,
    TRACKERS,
    UPLINK_BITS,
    method_names,
)
from fedbnn_core.config.defaults import Value, default_mapping
from fedbnn_core.errors import ConfigError

__all__ = ["CHANGEABLE", "RunConfig"]

CHANGEABLE = (
    "checkpoint-every",
    "client-threads",
    "data-dir",
    "device",
    "keep-checkpoints",
    "max-round-retries",
    "max-update-norm",
    "over-selection",
    "quarantine-after",
    "quarantine-rounds",
    "quorum",
    "round-timeout-s",
    "wait-timeout-s",
)
"""Keys that say how a run is run, not what it computes: a resume may change them."""


def _choice(*choices: str | int) -> Any:
    return field(metadata={"choices": choices})


_RUN_NAME = re.compile(r"\w[\w .+=@-]{0,99}")


def _within(minimum: float = -math.inf, maximum: float = math.inf) -> Any:
    return field(metadata={"range": (minimum, maximum)})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides a run; the same object on server and clients."""

    method: str = _choice(*method_names())
    """How clients train and what the server aggregates."""
    model: str = _choice(*MODELS)
    """The network."""
    model_width: int = _within(1, 4096)
    """Channels of a ResNet's first stage; 64 is the standard net."""
    dataset: str
    """A dataset's name, or folder:PATH or npz:PATH."""
    data_dir: str
    """Where datasets lie; empty means the usual places."""
    faithful_test_statistics: bool
    """Normalize FMNIST and SVHN test images by test-set statistics (leaky)."""
    partition: str = _choice(*PARTITION_SCHEMES)
    """How the training data is divided among the clients."""
    dirichlet_alpha: float = _within(1e-6, 1e6)
    """Concentration of the dirichlet partition."""
    label_fraction: float = _within(1e-6, 1.0)
    """Share of the labels a client of the label-fraction partition holds."""
    min_partition_size: int = _within(0, 10**9)
    """Smallest client of the dirichlet partition."""
    data_seed: int = _within(0, 2**63 - 1)
    """Fixes the partition, the validation/test halves and what limits leave."""
    num_partitions: int = _within(0, 10**6)
    """Parts that the training data is divided into; 0: as the clients say."""
    train_limit: int = _within(0, 10**9)
    """Use only so many training images, drawn at random; 0 means all."""
    test_limit: int = _within(0, 10**9)
    """Use only so many test images, drawn at random; 0 means all."""

    num_server_rounds: int = _within(1, 10**6)
    """Rounds of the run; also the length of the sharpness schedule."""
    clients_per_round: int = _within(1, 10**6)
    """Clients sampled in each round; fewer if fewer are connected."""
    local_epochs: int = _within(1, 10**4)
    """Passes of a client over its data per round."""
    batch_size: int = _within(2, 10**6)
    """Samples per step; batch normalization needs two."""
    lr: float = _within(0.0, 1e3)
    """Learning rate of SGD in the first rounds."""
    lr_schedule: str = _choice(*LR_SCHEDULES)
    """How the rate falls: halved, or along a line or half a cosine to 0."""
    lr_halve_from: int = _within(0, 10**9)
    """First round (from 0) with half the learning rate; 0 means never."""
    lr_halve_every: int = _within(1, 10**9)
    """Rounds between further halvings."""
    momentum: float = _within(0.0, 0.9999)
    """Momentum of the clients' SGD, restarted every round."""
    weight_decay: float = _within(0.0, 1.0)
    """Weight decay of the clients' SGD."""
    seed: int = _within(0, 2**63 - 1)
    """Fixes initial weights, client sampling and the order of samples."""

    aggregation: str = _choice(*AGGREGATIONS)
    """FedBNN's w~: mixed on the server, or by each client and then averaged."""
    server_alignment: bool
    """False fixes beta = 1 and lambda = 1 (ablation)."""
    initial_std: float = _within(0.0, 100.0)
    """Spread of a binary layer's initial weights; 0 is torch's default for its size."""
    omega_start: float = _within(-20.0, 20.0)
    """omega before training: sigmoid(omega) is the client's share of its weights."""
    rotation_start: str = _choice(*ROTATION_STARTS)
    """R at the start of every round; warm: learnt on the weights that were sent."""
    rotation_iterations: int = _within(0, 1000)
    """Bi-rotation iterations at the start of every local epoch."""
    served_average: float = _within(0.0, 0.999)
    """Share of the earlier rounds in the weights that are evaluated and shipped."""
    served_statistics: str = _choice(*SERVED_STATISTICS)
    """Batch norm of the shipped model: the clients', or as its own signs have it."""
    gradient_bits: int = _choice(*GRADIENT_BITS)
    """Bits of the gradient behind a binary convolution; 32 is float, 0 chooses."""
    activation: str = _choice(*ACTIVATIONS)
    """Static thresholds, or RBNN's per-sample standardization (not exportable)."""
    pool_before_bn: bool
    """CNN4: pool before batch normalization."""
    float_first: bool
    """CNN4: keep the first convolution in float."""

    uplink_bits: int = _choice(*UPLINK_BITS)
    """FedBNN, FedAvg: bits per weight from a client; below 32 it sends no rotations."""
    downlink_bits: int = _choice(*DOWNLINK_BITS)
    """FedBNN, FedAvg: bits per weight to a client; the server keeps floats."""

    fedbat_rho: float = _within(0.0, 100.0)
    """FedBAT: how fast the step sizes learn; 0 freezes them."""
    fedbat_warm_up: float = _within(0.0, 1.0)
    """FedBAT: share of a round's steps that train real updates."""
    fedmud_ratio: float = _within(1e-6, 1.0)
    """FedMUD: trained numbers aimed at, as a share of the parameters."""
    fedmud_magnitude: float = _within(1e-6, 1e6)
    """FedMUD: the frozen factors are uniform in (-magnitude, magnitude)."""
    fedmud_reset_every: int = _within(1, 10**9)
    """FedMUD: rounds after which the update is merged and starts again at zero."""

    round_timeout_s: float = _within(1.0, 1e9)
    """How long a round waits for replies."""
    wait_timeout_s: float = _within(0.0, 1e9)
    """How long the server waits while fewer clients than the quorum are connected."""
    quorum: float = _within(1e-9, 1.0)
    """Share of a round's clients whose replies must be accepted."""
    max_round_retries: int = _within(0, 10**6)
    """How often a round below the quorum is repeated with other clients."""
    over_selection: int = _within(0, 10**6)
    """Clients asked beyond clients-per-round; the first replies count."""
    max_update_norm: float = _within(1e-12, 1e300)
    """Largest L2 norm of (reply - broadcast) that is accepted."""
    quarantine_after: int = _within(0, 10**6)
    """Bad replies in a row until a client is excluded; 0 means never."""
    quarantine_rounds: int = _within(1, 10**6)
    """How many rounds such a client is excluded."""
    robust: str = _choice(*ROBUST_RULES)
    """How replies are aggregated: the weighted mean, or a rule that bears attackers."""
    robust_clip_norm: float = _within(0.0, 1e300)
    """Norm to which robust = "clip" clips updates; 0 is the round's median norm."""
    trim_fraction: float = _within(0.0, 0.499)
    """Share of clients-per-round that robust = "trimmed-mean" cuts at each end."""
    privacy: str = _choice(*PRIVACY_MODES)
    """Local differential privacy: clients clip their update and add noise to it."""
    privacy_clip_norm: float = _within(1e-12, 1e12)
    """L2 norm to which a private client clips its update."""
    privacy_noise_multiplier: float = _within(1e-6, 1e9)
    """Standard deviation of the noise, in clip norms."""
    privacy_delta: float = _within(1e-300, 0.5)
    """Delta at which epsilon is reported."""

    evaluate_every: int = _within(1, 10**6)
    """Rounds between evaluations on the validation half; the last always counts."""
    checkpoint_every: int = _within(1, 10**6)
    """Rounds between checkpoints; the last round always gets one."""
    keep_checkpoints: int = _within(1, 10**6)
    """Checkpoints kept; older ones are removed."""
    resume: str
    """A run directory to go on in, with the config stored there; empty: a new run."""
    device: str
    """auto, cpu, cuda, cuda:1, mps, ...; a device of a fleet decides for itself."""
    deterministic: bool
    """Torch's deterministic mode: on a GPU the same bits again, and less speed."""
    compile: bool
    """Let torch.compile fuse the clients' steps: pays on a GPU, in long runs."""
    client_threads: int = _within(0, 4096)
    """Torch threads of a client; 0 is torch's choice. The last bits depend on it."""
    output_dir: str
    """Where run directories are made; relative to where Flower runs the server."""
    run_name: str
    """Last part of the run directory's name; empty means method and dataset."""
    deliver_model: bool
    """Send the packed model to the devices when the run is over."""
    tracker: str = _choice(*TRACKERS)
    """Where metrics go beside TensorBoard files: none, wandb or mlflow."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            _check_value(entry.name, getattr(self, entry.name), entry.metadata)
        if self.run_name and not _RUN_NAME.fullmatch(self.run_name):
            raise ConfigError(
                "config key 'run-name' must be at most 100 letters, digits, spaces and "
                f"any of ._+=@-, a letter or digit first; got {self.run_name!r}. It is "
                "part of a folder's name; output-dir says where that folder lies"
            )

    @classmethod
    def from_mapping(
        cls, mapping: Mapping[str, Any], *, complete: bool = True
    ) -> "RunConfig":
        """Parse kebab-case keys.

        Parameters
        ----------
        mapping : key to value, as Flower hands it over in ``context.run_config``.
        complete : False fills absent keys from the defaults in ``pyproject.toml``.
        """
        known = {entry.name.replace("_", "-"): entry for entry in fields(cls)}
        unknown = sorted(set(mapping) - set(known))
        if unknown:
            raise ConfigError(
                f"unknown config key{'s' if len(unknown) > 1 else ''} "
                f"{', '.join(map(repr, unknown))}; valid keys: {', '.join(known)}"
            )
        values = dict(mapping) if complete else default_mapping() | dict(mapping)
        missing = [key for key in known if key not in values]
        if missing:
            raise ConfigError(
                f"missing config keys: {', '.join(missing)}; take them from "
                "[tool.flwr.app.config] of FedBNN's pyproject.toml"
            )
        converted: dict[str, Any] = {
            entry.name: _convert(key, values[key], entry.type)
            for key, entry in known.items()
        }
        return cls(**converted)

    def to_mapping(self) -> dict[str, Value]:
        """Return the kebab-case mapping; the inverse of `from_mapping`."""
        return {
            entry.name.replace("_", "-"): getattr(self, entry.name)
            for entry in fields(self)
        }

    def learning_rate(self, round_index: int) -> float:
        """Return the rate of a round counted from 0."""
        left = 1.0 - round_index / self.num_server_rounds
        if self.lr_schedule == "linear":
            return self.lr * left
        if self.lr_schedule == "cosine":
            return self.lr * 0.5 * (1.0 - math.cos(math.pi * left))
        if self.lr_halve_from == 0 or round_index < self.lr_halve_from:
            return self.lr
        halvings = 1 + (round_index - self.lr_halve_from) // self.lr_halve_every
        return float(self.lr * 0.5**halvings)


def _convert(key: str, value: Any, wanted: Any) -> Value:
    """Return the value as the field's type; an int is a valid float, no more."""
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not wanted:
        raise ConfigError(
            f"config key {key!r} must be a {wanted.__name__}, "
            f"got {value!r} ({type(value).__name__})"
        )
    return value  # type: ignore[no-any-return]


def _check_value(name: str, value: Any, rules: Mapping[str, Any]) -> None:
    key = name.replace("_", "-")
    choices = rules.get("choices")
    if choices is not None and value not in choices:
        listed = ", ".join(map(str, choices))
        raise ConfigError(f"config key {key!r} must be one of {listed}; got {value!r}")
    if "range" in rules:
        low, high = rules["range"]
        # Written so that NaN fails.
        if not low <= value <= high:
            raise ConfigError(
                f"config key {key!r} must be between {low:g} and {high:g}, got {value}"
            )

"""What server and devices say to each other: every name on the wire, once.

The server asks a node who it is (`IdentityQuestion`, answered by an `Identity`), sends
a `TrainOrder` with the weights, which is answered by arrays, rotations and
`ReplyMetrics`, and in the end offers the model (`ModelOffer`). Each class becomes one
flat record by `to_record` and is read back by `from_record`; the apps wrap records
into Flower's messages.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "ARRAYS",
    "LAYER_METRICS",
    "METRICS",
    "MODEL",
    "MODEL_QUERY",
    "ROTATIONS",
    "STORED",
    "Identity",
    "IdentityQuestion",
    "ModelOffer",
    "Record",
    "ReplyMetrics",
    "TrainOrder",
]

Record = dict[str, Any]
"""One flat record: numbers, text and lists of numbers by name."""

ARRAYS = "arrays"
"""Record of the weights, in an order and in a reply."""
ROTATIONS = "rotations"
"""Record of R1 and R2 of every binary layer, in a reply."""
METRICS = "metrics"
"""Record of a reply's `ReplyMetrics`."""
LAYER_METRICS = ("alpha", "beta", "lambda", "cos-phi")
"""Metrics of a reply that hold one number for each binary layer."""
MODEL_QUERY = "model"
"""Kind of the query that offers a model."""
MODEL = "model"
"""Record of the packed model's bytes, and the name of its one array."""
STORED = "stored"
"""Record of the answer to a `ModelOffer`: ``path``, where the device keeps it."""


def _config_json(config: Mapping[str, Any] | None) -> Record:
    return {} if config is None else {"run-config": json.dumps(dict(config))}


def _config_of(record: Mapping[str, Any]) -> dict[str, Any] | None:
    text = record.get("run-config")
    return None if text is None else dict(json.loads(str(text)))


@dataclass(frozen=True)
class IdentityQuestion:
    """The server asks a node who it is."""

    RECORD = "identity"
    """The record's name in the message."""

    version: str
    """The server's version of fedbnn."""
    task: str
    """What the run expects of a device's own images, as text."""
    run_config: Mapping[str, Any] | None = None
    """The config that holds, if it is not the one that Flower delivers."""

    def to_record(self) -> Record:
        """Return the record that is sent."""
        return {
            "version": self.version,
            "task": self.task,
            **_config_json(self.run_config),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "IdentityQuestion":
        """Read what `to_record` wrote; a server of another version may leave out all.

        The version is then empty and so unlike the device's own.
        """
        return cls(
            version=str(record.get("version", "")),
            task=str(record.get("task", "")),
            run_config=_config_of(record),
        )


@dataclass(frozen=True)
class Identity:
    """A node says who it is and what it holds."""

    RECORD = "identity"
    """The record's name in the message."""

    version: str
    """The node's version of fedbnn."""
    partition_id: int
    """Which client it is; -1 if it was not told."""
    num_partitions: int = 0
    """How many clients it counts; 0 if it does not know."""
    device_name: str = ""
    """The device's name in its fleet."""
    stores_models: bool = False
    """Whether it keeps the model that is offered in the end."""
    own_examples: int = 0
    """How many training images of its own it holds; 0 means none."""
    problem: str = ""
    """Why it cannot take part, if it cannot."""

    def to_record(self) -> Record:
        """Return the record that is sent."""
        record: Record = {
            "fedbnn-version": self.version,
            "partition-id": self.partition_id,
            "num-partitions": self.num_partitions,
            "device-name": self.device_name,
            "stores-models": self.stores_models,
        }
        if self.own_examples or self.problem:
            record |= {"own-examples": self.own_examples}
        if self.problem:
            record |= {"problem": self.problem}
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Identity":
        """Read a record from outside, whatever it holds.

        Where numbers are missing or no whole numbers, ``problem`` says so.
        """
        names = ("partition-id", "num-partitions", "own-examples")
        numbers = [record.get(name, 0) for name in names]
        problem = str(record.get("problem") or "")
        # type, not isinstance: True is an int.
        if "partition-id" not in record or any(type(n) is not int for n in numbers):
            numbers, problem = [-1, 0, 0], "its identity is malformed."
        return cls(
            version=str(record.get("fedbnn-version", "unknown")),
            partition_id=numbers[0],
            num_partitions=numbers[1],
            device_name=str(record.get("device-name") or ""),
            stores_models=bool(record.get("stores-models")),
            own_examples=numbers[2],
            problem=problem,
        )


@dataclass(frozen=True)
class TrainOrder:
    """The server asks a client to train; the weights come with it as `ARRAYS`."""

    RECORD = "config"
    """The record's name in the message."""

    round_index: int
    """The round, counted from 0."""
    num_rounds: int
    """All rounds of the run."""
    partition_file: str
    """Where the run's partition lies, if client and server share a disk."""
    num_partitions: int = 0
    """Into how many parts the data is divided; 0: the node's own config says it."""
    task: str = ""
    """What the run expects of a device's own images, as text."""
    run_config: Mapping[str, Any] | None = None
    """The config that holds, if it is not the one that Flower delivers."""

    def to_record(self) -> Record:
        """Return the record that is sent."""
        return {
            "round": self.round_index,
            "num-rounds": self.num_rounds,
            "partition-file": self.partition_file,
            "num-partitions": self.num_partitions,
            "task": self.task,
            **_config_json(self.run_config),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "TrainOrder":
        """Read what `to_record` wrote."""
        return cls(
            round_index=int(record["round"]),
            num_rounds=int(record["num-rounds"]),
            partition_file=str(record["partition-file"]),
            num_partitions=int(record["num-partitions"]),
            task=str(record["task"]),
            run_config=_config_of(record),
        )


@dataclass(frozen=True)
class ReplyMetrics:
    """What a client tells about its training beside the arrays."""

    NUM_EXAMPLES = "num-examples"
    PARTITION_ID = "partition-id"
    ROUND = "round"
    LOSS = "loss"

    num_examples: int
    """Samples it trained on."""
    partition_id: int
    """Which client it is."""
    round_index: int
    """The round it answers, counted from 0."""
    loss: float | None = None
    """Mean training loss of the last epoch; None if it is kept private."""
    layers: Mapping[str, list[float]] = field(default_factory=dict)
    """`LAYER_METRICS` by name, one number for each binary layer in model order."""

    def to_record(self) -> Record:
        """Return the record that is sent."""
        return {
            self.NUM_EXAMPLES: self.num_examples,
            self.PARTITION_ID: self.partition_id,
            self.ROUND: self.round_index,
            **({} if self.loss is None else {self.LOSS: self.loss}),
            **self.layers,
        }


@dataclass(frozen=True)
class ModelOffer:
    """The server offers the packed model; its bytes come with it as `MODEL`."""

    RECORD = "offer"
    """The record's name in the message."""

    sha256: str
    """Of the model's bytes."""
    run: str
    """The run it comes from."""
    val_accuracy: float
    """Its accuracy on the validation half, 0 to 1."""

    def to_record(self) -> Record:
        """Return the record that is sent."""
        return {
            "sha256": self.sha256,
            "run": self.run,
            "val-accuracy": self.val_accuracy,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "ModelOffer":
        """Read what `to_record` wrote."""
        return cls(
            sha256=str(record["sha256"]),
            run=str(record["run"]),
            val_accuracy=float(record["val-accuracy"]),
        )

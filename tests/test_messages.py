"""Every message keeps what it says on its way through a Flower record."""

import json

import pytest

from fedbnn_core.messages import (
    LAYER_METRICS,
    Identity,
    IdentityQuestion,
    ModelOffer,
    ReplyMetrics,
    TrainOrder,
)

flwr_app = pytest.importorskip("flwr.app")

CONFIG = {"seed": 3, "lr": 0.1, "dataset": "fmnist", "float-first": True}
MESSAGES = [
    IdentityQuestion("1.0", "task"),
    IdentityQuestion("1.0", "task", CONFIG),
    Identity("1.0", 3),
    Identity("1.0", 3, 10, "camera", stores_models=True, own_examples=7),
    Identity("1.0", -1, problem="no images"),
    TrainOrder(0, 8, "partition.npz", 5, "task"),
    TrainOrder(7, 8, "", run_config=CONFIG),
    ModelOffer("ab12", "20260101-run", 0.875),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_survives_the_wire(message):
    record = flwr_app.ConfigRecord(message.to_record())
    assert type(message).from_record(record) == message


def test_the_names_on_the_wire():
    """Devices that are in the field read these names."""
    order = TrainOrder(4, 8, "p.npz", 5, "t", CONFIG).to_record()
    assert json.loads(order.pop("run-config")) == CONFIG
    assert order == {
        "round": 4,
        "num-rounds": 8,
        "partition-file": "p.npz",
        "num-partitions": 5,
        "task": "t",
    }
    assert Identity("1.0", 3, 10, "camera", own_examples=7).to_record() == {
        "fedbnn-version": "1.0",
        "partition-id": 3,
        "num-partitions": 10,
        "device-name": "camera",
        "stores-models": False,
        "own-examples": 7,
    }
    assert ModelOffer("ab", "run", 0.5).to_record() == {
        "sha256": "ab",
        "run": "run",
        "val-accuracy": 0.5,
    }


@pytest.mark.parametrize("loss", [None, 0.0, 1.5])
def test_metrics_of_a_reply(loss):
    layers = {name: [0.5, 0.25] for name in LAYER_METRICS}
    metrics = ReplyMetrics(12, 3, 4, loss, layers)
    record = dict(flwr_app.MetricRecord(metrics.to_record()))
    expected = {"num-examples": 12, "partition-id": 3, "round": 4} | layers
    assert record == expected | ({} if loss is None else {"loss": loss})


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"num-partitions": 3},
        {"partition-id": "0"},
        {"partition-id": True},
        {"partition-id": 0, "num-partitions": 2.0},
        {"partition-id": 0, "own-examples": [1]},
    ],
)
def test_a_malformed_identity_has_a_problem(record):
    identity = Identity.from_record({"fedbnn-version": "1.0", **record})
    assert identity.problem == "its identity is malformed."
    assert (identity.partition_id, identity.own_examples) == (-1, 0)

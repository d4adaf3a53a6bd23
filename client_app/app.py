"""The Flower ClientApp: read the message, let the core train, reply."""

import io
import time
from collections.abc import Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from client_app.node import own_data_path
from fedbnn_core import __version__
from fedbnn_core.arrays import Arrays
from fedbnn_core.messages import (
    ARRAYS,
    METRICS,
    MODEL,
    MODEL_QUERY,
    ROTATIONS,
    STORED,
    Identity,
    IdentityQuestion,
    ModelOffer,
    ReplyMetrics,
    TrainOrder,
)
from fedbnn_core.wire.container import CONTAINER, pack, unpack

__all__ = ["app"]

app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Tell the server who this node is, what it holds and which version it runs."""
    node = context.node_config
    question = IdentityQuestion.from_record(
        message.content.config_records[IdentityQuestion.RECORD]
    )
    own_examples, problem = 0, ""
    if question.version != __version__:
        log(
            WARNING,
            "The server runs fedbnn %s, this device %s, so it is excluded. Install "
            "the same version on both sides.",
            *(question.version, __version__),
        )
    elif path := own_data_path(node):
        from client_app.own_data import describe_own_data

        own_examples, problem = describe_own_data(path, question.task)
    elif "device-name" in node:
        from client_app.own_data import describe_run_data

        problem = describe_run_data(_run_config(context, question.run_config), node)
    if problem:
        log(WARNING, "This device is excluded: %s", problem)
    identity = Identity(
        version=__version__,
        partition_id=int(node.get("partition-id", -1)),
        num_partitions=int(node.get("num-partitions", 0)),
        device_name=str(node.get("device-name", "")),
        stores_models="model-dir" in node,
        own_examples=own_examples,
        problem=problem,
    )
    record = ConfigRecord(identity.to_record())
    return Message(content=RecordDict({Identity.RECORD: record}), reply_to=message)


@app.query(MODEL_QUERY)
def receive_model(message: Message, context: Context) -> Message:
    """Check and store the packed model that the fleet has trained."""
    from fedbnn_core.fleet.model_store import store_model

    offer = ModelOffer.from_record(message.content.config_records[ModelOffer.RECORD])
    model = message.content.array_records[MODEL][MODEL].numpy()
    path = store_model(
        Path(str(context.node_config["model-dir"])),
        model.tobytes(),
        offer.sha256,
        {key: str(value) for key, value in offer.to_record().items()},
    )
    log(
        INFO,
        "The model has arrived: %s (validation accuracy %.2f %%). Try it with: "
        "fedbnn predict %s IMAGE",
        *(offer.run, 100 * offer.val_accuracy, path),
    )
    stored = ConfigRecord({"path": str(path)})
    return Message(content=RecordDict({STORED: stored}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this node's samples; reply with weights, rotations and metrics."""
    # Imported here: a query must not pay for torch.
    from client_app.local_round import LocalRound

    order = TrainOrder.from_record(message.content.config_records[TrainOrder.RECORD])
    sent = {
        name: np.load(io.BytesIO(file), allow_pickle=False)
        for name, file in unpack(
            message.content.array_records[ARRAYS][CONTAINER].data
        ).items()
    }
    config = _run_config(context, order.run_config)
    local = LocalRound(config, context.node_config, order, sent)
    started = time.monotonic()
    update, num_examples = local.train()
    if "device-name" in context.node_config:
        # For the device's owner; a simulation would print it for every client.
        log(
            INFO,
            "round %d/%d: trained on %d images in %.2f s",
            order.round_index + 1,
            order.num_rounds,
            num_examples,
            time.monotonic() - started,
        )
    if local.config.privacy == "local":
        from client_app.private_round import private_arrays

        arrays = private_arrays(
            update.arrays,
            local.broadcast,
            local.config,
            message=message,
            context=context,
        )
        update, num_examples = local.publish(arrays)
    metrics = ReplyMetrics(
        num_examples=num_examples,
        partition_id=int(context.node_config["partition-id"]),
        round_index=order.round_index,
        loss=update.loss,
        layers=update.layer_metrics,
    )
    records = RecordDict(
        {
            ARRAYS: _to_record(local.coded(update.arrays)),
            ROTATIONS: _to_record(update.rotations),
            METRICS: MetricRecord(metrics.to_record()),
        }
    )
    return Message(content=records, reply_to=message)


def _to_record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({CONTAINER: Array(pack(arrays))} if arrays else {})


def _run_config(context: Context, stored: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the run's config; a resumed run goes on with what the server stored."""
    return {**context.run_config, **(stored or {})}

"""The Flower ClientApp: read the message, let the core train, reply."""

import json
import time
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

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

from fedbnn_core import __version__

__all__ = ["app"]

app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Tell the server who this node is, what it holds and which version it runs."""
    node = context.node_config
    identity = ConfigRecord(
        {
            "fedbnn-version": __version__,
            "partition-id": int(node.get("partition-id", -1)),
            "num-partitions": int(node.get("num-partitions", 0)),
            "device-name": str(node.get("device-name", "")),
            "stores-models": "model-dir" in node,
        }
    )
    question = message.content.config_records["identity"]
    if question["version"] != __version__:
        log(
            WARNING,
            "The server runs fedbnn %s, this device %s, so it is left out. Install "
            "the same version on both sides.",
            *(question["version"], __version__),
        )
    elif "data" in node:
        from client_app.own_data import describe_own_data

        identity.update(describe_own_data(str(node["data"]), str(question["task"])))
    elif "device-name" in node:
        from client_app.own_data import describe_run_data

        identity.update(describe_run_data(_run_config(context, question), node))
    if "problem" in identity:
        log(WARNING, "This device is left out: %s", identity["problem"])
    return Message(content=RecordDict({"identity": identity}), reply_to=message)


@app.query("model")
def receive_model(message: Message, context: Context) -> Message:
    """Check and store the packed model that the fleet has trained."""
    from fedbnn_core.fleet.model_store import store_model

    offer = message.content.config_records["offer"]
    model = message.content.array_records["model"]["model"].numpy()
    path = store_model(
        Path(str(context.node_config["model-dir"])),
        model.tobytes(),
        str(offer["sha256"]),
        {key: str(value) for key, value in offer.items()},
    )
    stored = ConfigRecord({"path": str(path)})
    return Message(content=RecordDict({"stored": stored}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this node's samples; reply with weights, rotations and metrics."""
    # Imported here: a query must not pay for torch.
    from client_app.local_round import LocalRound

    order = message.content.config_records["config"]
    broadcast = {
        name: array.numpy()
        for name, array in message.content.array_records["arrays"].items()
    }
    local = LocalRound(
        _run_config(context, order), context.node_config, order, broadcast
    )
    started = time.monotonic()
    update, num_examples = local.train()
    if "device-name" in context.node_config:
        # For the device's owner; a simulation would print it for every client.
        log(
            INFO,
            "round %d/%d: trained on %d images in %.2f s",
            int(str(order["round"])) + 1,
            int(str(order["num-rounds"])),
            num_examples,
            time.monotonic() - started,
        )
    if local.config.privacy == "local":
        from client_app.private_round import private_arrays

        arrays = private_arrays(
            update.arrays, broadcast, local.config, message=message, context=context
        )
        update, num_examples = local.publish(arrays)
    metrics = MetricRecord(
        {
            "num-examples": num_examples,
            "partition-id": int(context.node_config["partition-id"]),
            "round": int(str(order["round"])),
            **({} if update.loss is None else {"loss": update.loss}),
            **update.layer_metrics,
        }
    )
    records = RecordDict(
        {
            "arrays": ArrayRecord({k: Array(v) for k, v in update.arrays.items()}),
            "rotations": ArrayRecord(
                {k: Array(v) for k, v in update.rotations.items()}
            ),
            "metrics": metrics,
        }
    )
    return Message(content=records, reply_to=message)


def _run_config(context: Context, order: ConfigRecord) -> dict[str, Any]:
    """Return the run's config; a resumed run goes on with what the server stored."""
    return {**context.run_config, **json.loads(str(order.get("run-config", "{}")))}

"""The Flower ClientApp: read the message, let the core train, reply."""

import json

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

from fedbnn_core import __version__

__all__ = ["app"]

app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Tell the server which partition this node holds and which version it runs."""
    node = context.node_config
    identity = ConfigRecord(
        {
            "fedbnn-version": __version__,
            "partition-id": int(node.get("partition-id", -1)),
            "num-partitions": int(node.get("num-partitions", 0)),
        }
    )
    return Message(content=RecordDict({"identity": identity}), reply_to=message)


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
    # A resumed run goes on with the config that the server stored.
    stored = json.loads(str(order.get("run-config", "{}")))
    local = LocalRound(
        {**context.run_config, **stored}, context.node_config, order, broadcast
    )
    update, num_examples = local.train()
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

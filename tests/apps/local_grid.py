"""Flower's grid in one process: the real apps exchange real messages, without Ray."""

import itertools

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import app as client_app
from server_app.app import app as server_app


class LocalGrid(Grid):
    """Nodes that answer as soon as they are asked, or as ``fault`` decides.

    Parameters
    ----------
    clients : number of nodes; their ids are 100, 101, ...
    run_config : what the clients see as the run's config.
    fault : called with (partition, round, reply); returns what is sent instead, or
        None for no reply at all.
    order : sorts the partitions of a round by arrival; by default as they were asked.
    models : folder in which each node stores packed models; by default they do not.
    """

    def __init__(self, clients, run_config, *, fault=None, order=None, models=None):
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.clients = clients
        self.run_config = run_config
        self.fault = fault or (lambda partition, round_index, reply: reply)
        self.order = order or (lambda partition: 0)
        self.models = models
        self.asked = []
        self._replies = []
        self._ids = itertools.count(1)

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *arguments, **options):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_node_ids(self):
        return [100 + partition for partition in range(self.clients)]

    def push_messages(self, messages):
        ids, batch = [], []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{next(self._ids)}"
            ids.append(message.metadata.message_id)
            partition = message.metadata.dst_node_id - 100
            reply = self._reply(partition, message)
            if reply is not None:
                batch.append((self.order(partition), reply))
        batch.sort(key=lambda entry: entry[0])
        self._replies += [reply for _, reply in batch]
        return ids

    def _reply(self, partition, message):
        node_config = {"partition-id": partition, "num-partitions": self.clients}
        if self.models is not None:
            node_config["model-dir"] = str(self.models / str(partition))
        context = Context(
            run_id=1,
            node_id=100 + partition,
            node_config=node_config,
            state=RecordDict(),
            run_config=self.run_config,
        )
        if message.metadata.message_type.startswith("query"):
            return client_app(message, context)
        round_index = message.content["config"]["round"]
        self.asked.append((round_index, partition))
        reply = client_app(message, context)
        return self.fault(partition, round_index, reply)

    def pull_messages(self, message_ids):
        wanted = set(message_ids)
        # One at a time, so that the order of arrival is the order of `order`.
        for number, reply in enumerate(self._replies):
            if reply.metadata.reply_to_message_id in wanted:
                return [self._replies.pop(number)]
        return []


def run_server(grid, run_config):
    """Run the real ServerApp over a grid."""
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config
    )
    server_app(grid, context)


def error_reply(reply, code, reason, *, from_superlink=False):
    """Return an error in place of a reply."""
    error = Message(Error(code=code, reason=reason), reply_to=reply)
    metadata = error.metadata.__dict__
    metadata["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    metadata["_src_node_id"] = 1 if from_superlink else reply.metadata.src_node_id
    return error

"""Who is connected: the nodes' partition ids and versions.

Flower's node ids are random in every run, so clients are sampled by partition id;
each new node is asked once which partition it holds.
"""

import time
from dataclasses import dataclass, field
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedbnn_core import __version__
from fedbnn_core.errors import RunError

__all__ = ["Roster"]

_WAIT_SECONDS = 1.0


@dataclass
class Roster:
    """Partition id and node id of every usable node."""

    node_of_partition: dict[int, int] = field(default_factory=dict)
    num_partitions: int = 0
    _asked: set[int] = field(default_factory=set)

    def update(self, grid: Grid, *, timeout: float = 600.0) -> None:
        """Ask new nodes for their partition, forget those that left."""
        present = set(grid.get_node_ids())
        while not present:
            log(INFO, "Waiting for clients to connect ...")
            time.sleep(_WAIT_SECONDS)
            present = set(grid.get_node_ids())
        self.node_of_partition = {
            partition: node
            for partition, node in self.node_of_partition.items()
            if node in present
        }
        new = sorted(present - self._asked)
        self._asked |= set(new)
        question = RecordDict({"identity": ConfigRecord({"version": __version__})})
        replies = grid.send_and_receive(
            [
                Message(content=question, dst_node_id=node, message_type=_QUERY)
                for node in new
            ],
            timeout=timeout,
        )
        for reply in replies:
            self._register(reply)
        if not self.node_of_partition:
            raise RunError(
                f"none of {len(present)} connected clients can take part; "
                "see the warnings above"
            )

    def _register(self, reply: Message) -> None:
        node = reply.metadata.src_node_id
        if reply.has_error():
            log(WARNING, "Node %s does not answer: %s", node, reply.error.reason)
            return
        identity = reply.content.config_records["identity"]
        version = identity["fedbnn-version"]
        if version != __version__:
            log(
                WARNING,
                "Node %s runs fedbnn %s, the server %s: left out. Install the same "
                "version on both sides.",
                node,
                version,
                __version__,
            )
            return
        partition, count = identity["partition-id"], identity["num-partitions"]
        if not isinstance(partition, int) or not isinstance(count, int):
            log(WARNING, "Node %s sent a malformed identity: left out.", node)
            return
        if partition < 0 or partition >= count:
            log(
                WARNING,
                "Node %s has partition-id %s of %s: left out. Start it with "
                "--node-config 'partition-id=0 num-partitions=2' or similar.",
                node,
                partition,
                count,
            )
            return
        if self.num_partitions not in (0, count):
            log(
                WARNING,
                "Node %s counts %s partitions, others %s: left out.",
                node,
                count,
                self.num_partitions,
            )
            return
        self.num_partitions = count
        self.node_of_partition[partition] = node


_QUERY = MessageType.QUERY

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
_POLL_SECONDS = 0.1
_IDLE_SECONDS = 60.0


@dataclass
class Roster:
    """Partition id and node id of every usable node."""

    node_of_partition: dict[int, int] = field(default_factory=dict)
    num_partitions: int = 0
    _known: set[int] = field(default_factory=set)
    _waiting: dict[str, int] = field(default_factory=dict)
    """Node asked, by the id of the question."""

    def update(self, grid: Grid) -> None:
        """Ask new nodes for their partition, forget those that left.

        The server waits for answers as long as they keep coming, and without any
        usable node until there is one. A node that is silent for a minute does not
        hold up the others: its answer counts when it comes.
        """
        while True:
            present = set(grid.get_node_ids())
            self._forget_all_but(present)
            self._ask(grid, present)
            self._receive(grid)
            if self.node_of_partition:
                return
            if present and not self._waiting:
                raise RunError(
                    f"none of {len(present)} connected clients can take part; "
                    "see the warnings above"
                )
            log(INFO, "Waiting for clients to connect ...")
            time.sleep(_WAIT_SECONDS)

    def _forget_all_but(self, present: set[int]) -> None:
        self._known &= present
        self.node_of_partition = {
            partition: node
            for partition, node in self.node_of_partition.items()
            if node in present
        }
        self._waiting = {
            q: node for q, node in self._waiting.items() if node in present
        }

    def _ask(self, grid: Grid, present: set[int]) -> None:
        new = sorted(present - self._known)
        self._known |= set(new)
        question = RecordDict({"identity": ConfigRecord({"version": __version__})})
        messages = [
            Message(content=question, dst_node_id=node, message_type=MessageType.QUERY)
            for node in new
        ]
        ids = [str(message_id) for message_id in grid.push_messages(messages)]
        self._waiting |= dict(zip(ids, new, strict=True))

    def _receive(self, grid: Grid) -> None:
        last_answer = time.monotonic()
        while self._waiting and time.monotonic() - last_answer < _IDLE_SECONDS:
            replies = list(grid.pull_messages(list(self._waiting)))
            for reply in replies:
                node = self._waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    self._register(node, reply)
                last_answer = time.monotonic()
            if not replies:
                time.sleep(_POLL_SECONDS)

    def _register(self, node: int, reply: Message) -> None:
        if reply.has_error():
            log(WARNING, "Node %s does not answer: %s", node, reply.error.reason)
            self._known.discard(node)  # Ask again next time.
            return
        identity = reply.content.config_records.get("identity", ConfigRecord())
        version = identity.get("fedbnn-version")
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
        partition = identity.get("partition-id")
        count = identity.get("num-partitions")
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

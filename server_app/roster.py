"""Who is connected: the nodes' partition ids, versions and own data.

Flower's node ids are random in every run, so clients are sampled by partition id;
each new node is asked once which partition it holds.
"""

import math
import time
from dataclasses import dataclass, field
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedbnn_core import __version__
from fedbnn_core.config import RunConfig
from fedbnn_core.errors import RunError
from fedbnn_core.fleet.membership import claim_problem, served_devices
from fedbnn_core.fleet.registry import Device
from fedbnn_core.messages import Identity, IdentityQuestion
from fedbnn_core.runs.log import one_line
from server_app.inbox import Answer, Inbox, is_simulated

__all__ = ["Roster"]

_WAIT_SECONDS = 1.0
_SAY_SECONDS = 10.0
_POLL_SECONDS = 0.1
_IDLE_SECONDS = 60.0
# A device weighs by its images; no single one may claim any number.
_MOST_OWN_EXAMPLES = 1_000_000


@dataclass
class Roster:
    """Partition id and node id of every usable node.

    Parameters
    ----------
    config : the run's config; its quorum says how many clients must be connected.
    task : what the run expects of a device's own images, as text.
    """

    config: RunConfig
    task: str = ""
    node_of_partition: dict[int, int] = field(default_factory=dict)
    num_partitions: int = 0
    model_nodes: set[int] = field(default_factory=set)
    """Nodes that store the packed model, taking part in training or not."""
    _own_examples: dict[int, int] = field(default_factory=dict)
    _known: set[int] = field(default_factory=set)
    _waiting: dict[str, int] = field(default_factory=dict)
    """Node asked, by the id of the question."""
    _spare: dict[int, tuple[int, Answer]] = field(default_factory=dict)
    """Partition and answer of nodes that claim what another one holds."""
    _met: set[int] = field(default_factory=set)
    """Every node that was ever asked: nobody is waited for twice."""
    _owners: dict[int, Device | None] | None = None
    """Whom each node's key belongs to; None if no fleet is served."""
    _inbox: Inbox = field(default_factory=lambda: Inbox(MessageType.QUERY))

    def __post_init__(self) -> None:
        self.num_partitions = self.config.num_partitions

    def update(self, grid: Grid) -> None:
        """Ask new nodes for their partition, forget those that left.

        The server waits for answers as long as they keep coming, and while fewer
        clients than the quorum are connected, up to the configured time. A device that
        is silent for a minute does not hold up the others: its answer counts when it
        comes. A simulated client is only slow, and who is there decides who is chosen:
        the server waits for all of them.

        Raises
        ------
        RunError
            Too few clients are there in the end, or none of those that are can help.
        """
        deadline = time.monotonic() + self.config.wait_timeout_s
        said = -math.inf
        while True:
            present = self.refresh(grid)
            connected, needed = len(self.node_of_partition), self._needed()
            if connected >= needed:
                return
            # A fleet's other devices may still come; a simulation has no others.
            others_may_come = self._waiting or self.config.num_partitions
            if present and not connected and not others_may_come:
                raise RunError(
                    f"none of {present} connected clients can take part; "
                    "see the warnings above"
                )
            now = time.monotonic()
            if now >= deadline:
                raise RunError(
                    f"{connected} of {needed} needed clients were connected after "
                    f"{self.config.wait_timeout_s:.0f} s of waiting; connect more, or "
                    "lower quorum or clients-per-round"
                )
            if now - said >= _SAY_SECONDS:
                said = now
                log(
                    INFO,
                    "Waiting for clients: %d connected, %d needed, %d missing; giving "
                    "up in %.0f s",
                    connected,
                    needed,
                    needed - connected,
                    deadline - now,
                )
            time.sleep(min(_WAIT_SECONDS, deadline - now))

    def refresh(self, grid: Grid) -> int:
        """Look once who is there; return how many nodes are connected."""
        present = set(grid.get_node_ids())
        self._forget_all_but(present)
        self._admit_spare()
        self._ask(grid, present)
        self._receive(grid)
        return len(present)

    def own_examples(self) -> dict[int, int]:
        """Return how many images of its own each partition's device says it holds."""
        return dict(self._own_examples)

    def _needed(self) -> int:
        wanted = min(self.config.clients_per_round, max(1, self.num_partitions))
        return max(1, math.ceil(self.config.quorum * wanted))

    def _forget_all_but(self, present: set[int]) -> None:
        self._known &= present
        self.model_nodes &= present
        self.node_of_partition = {
            partition: node
            for partition, node in self.node_of_partition.items()
            if node in present
        }
        self._waiting = {
            q: node for q, node in self._waiting.items() if node in present
        }
        self._spare = {n: spare for n, spare in self._spare.items() if n in present}

    def _admit_spare(self) -> None:
        """Let a node take the partition whose holder has left.

        A device without a key that starts again is a new node, and Flower takes a
        minute to notice that the old one is gone.
        """
        for node, (partition, answer) in list(self._spare.items()):
            if partition not in self.node_of_partition:
                del self._spare[node]
                self._register(node, answer)

    def _ask(self, grid: Grid, present: set[int]) -> None:
        new = sorted(present - self._known)
        if not new:
            return
        self._known |= set(new)
        self._look_up_owners(grid)
        question = IdentityQuestion(
            version=__version__,
            task=self.task,
            # Clients see the config of this `flwr run`; the stored one holds.
            run_config=self.config.to_mapping() if self.config.resume else None,
        )
        content = RecordDict(
            {IdentityQuestion.RECORD: ConfigRecord(question.to_record())}
        )
        messages = [
            Message(content=content, dst_node_id=node, message_type=MessageType.QUERY)
            for node in new
        ]
        ids = [str(message_id) for message_id in grid.push_messages(messages)]
        self._waiting |= dict(zip(ids, new, strict=True))

    def _look_up_owners(self, grid: Grid) -> None:
        """Read in the fleet's registry whom the connected nodes' keys belong to."""
        devices = served_devices()
        if devices is None:
            return
        # Flower's grid of a deployment tells the key by which a node signed in.
        nodes = grid.get_nodes()
        self._owners = {n.node_id: devices.get(bytes(n.public_key)) for n in nodes}

    def _receive(self, grid: Grid) -> None:
        """Take the answers that have come; wait for those who are asked first."""
        awaited = set(self._waiting.values()) - self._met
        self._met |= awaited
        last_answer = time.monotonic()
        patience = _IDLE_SECONDS
        if is_simulated(grid):
            patience = max(patience, self.config.wait_timeout_s)
        while self._waiting:
            found = False
            for fetched in self._inbox.pull(grid, list(self._waiting)):
                for answer in fetched:
                    node = self._waiting.pop(answer.question, None)
                    if node is not None:
                        self._register(node, answer)
                    last_answer, found = time.monotonic(), True
            is_idle = time.monotonic() - last_answer >= patience
            if is_idle or awaited.isdisjoint(self._waiting.values()):
                return
            if not found:
                time.sleep(_POLL_SECONDS)

    def _register(self, node: int, answer: Answer) -> None:
        if answer.content is None:
            reason = one_line(answer.problem)
            if answer.is_malformed:
                log(WARNING, "%s is excluded: %s", self._name(node, ""), reason)
            else:
                log(WARNING, "%s does not answer: %s", self._name(node, ""), reason)
                self._known.discard(node)  # Ask again next time.
            return
        records = answer.content.config_records
        identity = Identity.from_record(records.get(Identity.RECORD, ConfigRecord()))
        name = self._name(node, identity.device_name)
        if self._owners is not None:
            owner = self._owners.get(node)
            if problem := claim_problem(owner, identity.partition_id):
                log(WARNING, "%s is excluded: %s", name, problem)
                return
        if identity.version == __version__ and identity.stores_models:
            self.model_nodes.add(node)
        if problem := self._problem(identity):
            log(WARNING, "%s is excluded: %s", name, one_line(problem))
            return
        partition = identity.partition_id
        if self.node_of_partition.get(partition, node) != node:
            self._spare[node] = partition, answer
            log(
                WARNING,
                "%s is excluded: another connected one has number %d. Give each device "
                "a bundle of its own, or with --insecure its own --number.",
                name,
                partition,
            )
            return
        self.num_partitions = self.num_partitions or identity.num_partitions
        self.node_of_partition[partition] = node
        self._own_examples[partition] = identity.own_examples

    def _name(self, node: int, said: str) -> str:
        """Return what to call a node: by its key's owner, else as it says."""
        owner = (self._owners or {}).get(node)
        name = owner.name if owner is not None else one_line(said)
        return f"Device {name}" if name else f"Node {node}"

    def _problem(self, identity: Identity) -> str:
        """Return why a node cannot take part, or nothing."""
        if identity.version != __version__:
            return (
                f"it runs fedbnn {identity.version}, the server {__version__}. Install "
                "the same version on both sides."
            )
        if identity.problem:
            return identity.problem
        partition, count = identity.partition_id, identity.num_partitions
        own = identity.own_examples
        if not 0 <= own <= _MOST_OWN_EXAMPLES:
            return f"it claims {own} images; at most {_MOST_OWN_EXAMPLES} count."
        if count and self.num_partitions not in (0, count):
            return f"it counts {count} partitions, others {self.num_partitions}."
        count = count or self.num_partitions
        if count == 0:
            return "nobody says how many partitions there are; set num-partitions."
        if partition < 0 or (partition >= count and own == 0):
            return (
                f"it has partition-id {partition} of {count}. Start it with "
                "--node-config 'partition-id=0 num-partitions=2' or similar; a device "
                "that was added to the fleet during a run takes part in the next one."
            )
        return ""

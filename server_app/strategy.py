"""The Flower Strategy of FedBNN: sample, send, collect, hand over to the core."""

from collections.abc import Iterable
from functools import partial
from logging import INFO, WARNING

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedbnn_core.arrays import Arrays
from fedbnn_core.errors import ReplyError, RunError
from fedbnn_core.messages import ARRAYS, METRICS, ROTATIONS, TrainOrder
from fedbnn_core.runs.log import directory_line, round_line
from fedbnn_core.runs.metrics import RoundMetrics
from fedbnn_core.runs.progress import RECENT_ROUNDS
from fedbnn_core.server.attempt import RoundAttempt
from fedbnn_core.server.reply import Reply
from fedbnn_core.server.run import ServerRun
from fedbnn_core.server.validation import validate
from fedbnn_core.wire.container import CONTAINER, pack, unpack
from server_app.exchange import Exchange
from server_app.inbox import Answer, answer_of, record_bytes
from server_app.objects import Limits
from server_app.roster import Roster

__all__ = ["FedBNNStrategy", "to_record"]

_TTL_MARGIN_SECONDS = 60.0
_REPLY_RECORDS = {
    ARRAYS: ArrayRecord,
    ROTATIONS: ArrayRecord,
    METRICS: MetricRecord,
}


class FedBNNStrategy(Strategy):
    """Run the rounds of a `ServerRun` over Flower's grid.

    Weights travel in the record ``arrays``, coded if the config says so, R1 and R2 in
    ``rotations``, each record as one container. Evaluation happens on the server, so no
    evaluation messages are sent.
    """

    def __init__(self, run: ServerRun, roster: Roster) -> None:
        self.run = run
        self.roster = roster
        self._exchange = Exchange(Limits.of_arrays(run.context.rules.travelling))
        self._attempt: RoundAttempt | None = None
        """The attempt under way at the current round."""
        self._bytes_down = 0
        self._partition_of_node: dict[int, int] = {}
        self._recent: list[RoundMetrics] = []
        """The metrics of the newest rounds."""

    def summary(self) -> None:
        """Log what is about to run."""
        config = self.run.config
        log(
            INFO,
            "%s: %s on %s (%s partition), %d clients, %d per round, %d rounds",
            config.method,
            config.model,
            config.dataset,
            config.partition,
            self.run.context.num_partitions,
            min(config.clients_per_round, len(self.roster.node_of_partition)),
            config.num_server_rounds,
        )
        log(INFO, "%s", directory_line(self.run.directory.path))
        for note in self.run.notes:
            log(WARNING, "%s", note)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message per sampled client: weights and the round's clock."""
        self.roster.update(grid)
        self.run.admit_examples(self.roster.own_examples())
        attempt = self.run.begin_attempt(list(self.roster.node_of_partition))
        self._attempt = attempt
        order = TrainOrder(
            round_index=server_round - 1,
            num_rounds=self.run.config.num_server_rounds,
            partition_file=str(self.run.context.partition_file),
            num_partitions=self.run.context.num_partitions,
            task=self.roster.task,
            # Clients see the config of this `flwr run`; the stored one holds.
            run_config=self.run.config.to_mapping() if self.run.config.resume else None,
        )
        # Every message carries the same content, so one record serves them all.
        content = RecordDict(
            {ARRAYS: arrays, TrainOrder.RECORD: ConfigRecord(order.to_record())}
        )
        self._bytes_down = record_bytes(arrays) * len(attempt.asked)
        nodes = {p: self.roster.node_of_partition[p] for p in attempt.asked}
        self._partition_of_node = {node: p for p, node in nodes.items()}
        return [
            Message(
                content=content,
                dst_node_id=node,
                message_type=MessageType.TRAIN,
                ttl=self.run.config.round_timeout_s + _TTL_MARGIN_SECONDS,
            )
            for node in nodes.values()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Validate and store each reply as it comes, then aggregate and evaluate.

        Returns (None, None) if fewer replies than the quorum can be used.
        """
        named = []
        for reply in replies:
            answer = answer_of(reply.metadata.reply_to_message_id, reply)
            self._exchange.count([answer])
            sender = self._partition_of_node.get(reply.metadata.src_node_id, -1)
            named.append((sender, answer))
        return self._aggregate(server_round, named), None

    def _aggregate(
        self, server_round: int, replies: Iterable[tuple[int, Answer]]
    ) -> ArrayRecord | None:
        if self._attempt is None:
            raise RunError("no client was asked; call configure_train first")
        with self._attempt as attempt:
            for partition, reply in replies:
                attempt.take(
                    partition,
                    partial(self._read, server_round, partition, reply),
                    size_bytes=reply.size_bytes,
                )
                if attempt.is_full:
                    break
            metrics = self.run.end_attempt(
                attempt,
                bytes_up=self._exchange.take_bytes(),
                bytes_down=self._bytes_down,
            )
        if metrics is None:
            return None
        self._recent = [*self._recent, metrics][-RECENT_ROUNDS:]
        log(INFO, "%s", round_line(self._recent))
        return to_record(self.run.messages.order())

    def _read(self, server_round: int, partition: int, reply: Answer) -> Reply:
        """Return the validated reply, or raise `ReplyError` with the reason."""
        content = reply.records()
        kinds = {name: type(record) for name, record in content.items()}
        if kinds != _REPLY_RECORDS:
            raise ReplyError(
                f"it must hold the records {', '.join(_REPLY_RECORDS)}, got "
                + ", ".join(f"{kind.__name__} {name!r}" for name, kind in kinds.items())
            )
        return validate(
            self.run.rules_for(partition),
            arrays=_npy_files(content.array_records[ARRAYS]),
            rotations=_npy_files(content.array_records[ROTATIONS]),
            metrics=dict(content.metric_records[METRICS]),
            broadcast=self.run.broadcast,
            round_index=server_round - 1,
            partition_id=partition,
            read=partial(self.run.messages.read, client=partition),
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return nothing: the server evaluates."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return nothing: the server evaluates."""
        return None

    def start(  # type: ignore[override]
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3
    ) -> Result:
        """Run the rounds that are left; replies are validated while others still train.

        Raises
        ------
        RunError
            A round stayed below the quorum too often, or a file cannot be written.
        """
        self.summary()
        result = Result()
        arrays = initial_arrays
        while self.run.rounds_done < num_rounds:
            server_round = self.run.rounds_done + 1
            messages = self.configure_train(server_round, arrays, ConfigRecord(), grid)
            by_partition = {
                self._partition_of_node[message.metadata.dst_node_id]: message
                for message in messages
            }
            self._exchange.send(grid, by_partition)
            timeout_s = self.run.config.round_timeout_s
            replies = self._exchange.replies(grid, timeout_s)
            aggregated = self._aggregate(server_round, replies)
            if aggregated is not None:
                arrays = result.arrays = aggregated
        return result


def to_record(arrays: Arrays) -> ArrayRecord:
    """Return the arrays as a Flower record: one container."""
    return ArrayRecord({CONTAINER: Array(pack(arrays))})


def _npy_files(record: ArrayRecord) -> dict[str, bytes]:
    """Return a record's arrays as they came; raise `ReplyError` for a bad container."""
    if set(record) == {CONTAINER}:
        return unpack(record[CONTAINER].data)
    return {name: array.data for name, array in record.items()}

"""The Flower Strategy of FedBNN: sample, send, collect, hand over to the core."""

import time
from collections.abc import Iterable
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

from fedbnn_core.aggregation import Arrays
from fedbnn_core.errors import ReplyError, RunError
from fedbnn_core.replies import ReplyStore, StoredReply
from fedbnn_core.server_run import RoundTraffic, ServerRun
from fedbnn_core.validation import check_reply
from server_app.progress import round_line
from server_app.roster import Roster

__all__ = ["FedBNNStrategy", "to_record"]

_POLL_SECONDS = 0.05
_MAX_POLL_SECONDS = 1.0


class FedBNNStrategy(Strategy):
    """Run the rounds of a `ServerRun` over Flower's grid.

    Weights travel in the record ``arrays``, R1 and R2 in ``rotations``. Evaluation
    happens on the server, so no evaluation messages are sent.
    """

    def __init__(self, run: ServerRun, roster: Roster) -> None:
        self.run = run
        self.roster = roster
        self._partition_of_message: dict[str, int] = {}
        self._traffic = RoundTraffic()

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
            self.run.num_partitions,
            min(config.clients_per_round, len(self.roster.node_of_partition)),
            config.num_server_rounds,
        )
        log(INFO, "Run directory: %s", self.run.directory.path)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message per sampled client: weights and the round's clock."""
        self.roster.update(grid)
        chosen = self.run.sample(list(self.roster.node_of_partition))
        order = ConfigRecord(
            {
                "round": server_round - 1,
                "num-rounds": self.run.config.num_server_rounds,
                "partition-file": str(self.run.partition_file),
            }
        )
        # Every message carries the same content, so one record serves them all.
        content = RecordDict({"arrays": arrays, "config": order})
        self._traffic = RoundTraffic(
            bytes_down=record_bytes(arrays) * len(chosen), clients_asked=len(chosen)
        )
        self._report_progress(server_round, 0)
        return [
            Message(
                content=content,
                dst_node_id=self.roster.node_of_partition[partition],
                message_type=MessageType.TRAIN,
            )
            for partition in chosen
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Judge and store each reply as it comes, then combine and evaluate."""
        partition_of_node = {
            node: partition for partition, node in self.roster.node_of_partition.items()
        }
        started = time.monotonic()
        with ReplyStore() as store:
            for reply in replies:
                partition = partition_of_node.get(reply.metadata.src_node_id, -1)
                try:
                    store.add(self._accept(server_round, partition, reply))
                except ReplyError as error:
                    self._traffic.rejected.append(
                        {"client": partition, "reason": str(error)}
                    )
                    log(WARNING, "Client %s: reply rejected: %s", partition, error)
                self._report_progress(server_round, len(store))
            self._traffic.train_seconds = time.monotonic() - started
            if len(store) == 0:
                raise RunError(
                    f"round {server_round}: no usable reply from any client; "
                    f"see {self.run.directory.path} for what was saved"
                )
            line = self.run.finish_round(store.in_partition_order(), self._traffic)
        log(INFO, round_line(line))
        return to_record(self.run.broadcast), None

    def _report_progress(self, server_round: int, accepted: int) -> None:
        rejected = len(self._traffic.rejected)
        self.run.directory.write_progress(
            round_number=server_round,
            clients=self._traffic.clients_asked,
            done=accepted + rejected,
            rejected=rejected,
        )

    def _accept(self, server_round: int, partition: int, reply: Message) -> StoredReply:
        """Return the reply's arrays, or raise `ReplyError` with the reason."""
        if reply.has_error():
            reason = (reply.error.reason or "").strip().splitlines()
            raise ReplyError(reason[-1] if reason else f"error {reply.error.code}")
        content = reply.content
        try:
            metrics = content.metric_records["metrics"]
            arrays, rotations = (
                {name: array.numpy() for name, array in record.items()}
                for record in (
                    content.array_records["arrays"],
                    content.array_records["rotations"],
                )
            )
        except Exception as error:
            raise ReplyError(f"malformed reply: {error}") from error
        if metrics.get("round") != server_round - 1:
            raise ReplyError(f"it answers round {metrics.get('round')}")
        num_examples = metrics.get("num-examples")
        check_reply(self.run.rules, arrays, rotations, num_examples)
        self._traffic.bytes_up += sum(
            record_bytes(record) for record in content.array_records.values()
        )
        loss = metrics.get("loss")
        if isinstance(loss, float):
            self._traffic.losses[partition] = loss
        self._traffic.layer_metrics[partition] = {
            name: [float(v) for v in values]
            for name, values in metrics.items()
            if isinstance(values, list)
        }
        assert isinstance(num_examples, int)  # noqa: S101  check_reply saw to it
        return StoredReply(partition, num_examples, arrays | rotations)

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
        """Run the rounds that are left; replies are judged while others still train."""
        self.summary()
        result = Result()
        arrays = initial_arrays
        for server_round in range(self.run.rounds_done + 1, num_rounds + 1):
            messages = self.configure_train(server_round, arrays, ConfigRecord(), grid)
            replies = self._collect(grid, messages)
            aggregated, _ = self.aggregate_train(server_round, replies)
            if aggregated is not None:
                arrays = result.arrays = aggregated
        return result

    def _collect(self, grid: Grid, messages: Iterable[Message]) -> Iterable[Message]:
        """Send the messages and yield each reply as soon as it is there.

        Flower's own ``send_and_receive`` looks every three seconds in a deployment and
        holds all replies until the last one.
        """
        waiting = {str(message_id) for message_id in grid.push_messages(messages)}
        deadline = time.monotonic() + self.run.config.round_timeout_s
        pause = _POLL_SECONDS
        while waiting and time.monotonic() < deadline:
            replies = list(grid.pull_messages(list(waiting)))
            for reply in replies:
                waiting.discard(reply.metadata.reply_to_message_id)
                yield reply
            if replies:
                pause = _POLL_SECONDS
            elif waiting:
                time.sleep(pause)
                pause = min(pause * 1.2, _MAX_POLL_SECONDS)
        if waiting:
            log(
                WARNING,
                "%d replies are missing after %.0f s; the round goes on without them",
                len(waiting),
                self.run.config.round_timeout_s,
            )


def to_record(arrays: Arrays) -> ArrayRecord:
    """Return the arrays as a Flower record."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def record_bytes(record: ArrayRecord) -> int:
    """Return the bytes of a record's arrays as they travel."""
    return sum(len(array.data) for array in record.values())

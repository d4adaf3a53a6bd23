"""Send a round's messages and yield the replies as they come.

Flower's own ``send_and_receive`` looks every three seconds in a deployment and holds
all replies until the last one. Replies are told apart by the message they answer: the
error reply for a node that died carries the SuperLink's id, not the node's.
"""

import time
from collections.abc import Iterable, Iterator, Mapping

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

__all__ = ["Exchange", "record_bytes"]

_POLL_SECONDS = 0.05
_MAX_POLL_SECONDS = 1.0
_PULL_AT_ONCE = 8
"""Replies fetched by one call: a fetched reply is in memory until it is validated."""


class Exchange:
    """The messages of the current round, and late replies to earlier ones."""

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}
        self._abandoned: set[str] = set()
        self._counted_bytes = 0

    def send(self, grid: Grid, messages: Mapping[int, Message]) -> None:
        """Send one message per partition; earlier ones no longer count."""
        self._abandoned |= self._waiting.keys()
        self._discard_late(grid)
        sent = {str(i) for i in grid.push_messages(list(messages.values())) if i}
        self._waiting = {
            message.metadata.message_id: partition
            for partition, message in messages.items()
            if message.metadata.message_id in sent
        }

    def unanswered(self) -> list[int]:
        """Return the partitions whose reply has not come, sorted."""
        return sorted(self._waiting.values())

    def replies(self, grid: Grid, timeout_s: float) -> Iterator[tuple[int, Message]]:
        """Yield (partition, reply) until all have answered or the time is over."""
        deadline = time.monotonic() + timeout_s
        pause = _POLL_SECONDS
        while self._waiting and time.monotonic() < deadline:
            found = False
            for ids in _batches(self._waiting):
                fetched = self.counted(grid.pull_messages(ids))
                found = found or bool(fetched)
                # All at once: the caller may stop before it has seen every one.
                partitions = [
                    self._waiting.pop(reply.metadata.reply_to_message_id)
                    for reply in fetched
                ]
                yield from zip(partitions, fetched, strict=True)
                del fetched
            if found:
                pause = _POLL_SECONDS
            elif self._waiting:
                self._discard_late(grid)
                time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
                pause = min(pause * 1.2, _MAX_POLL_SECONDS)

    def counted(self, replies: Iterable[Message]) -> list[Message]:
        """Return replies that were fetched, their bytes added to the count."""
        fetched = list(replies)
        for reply in fetched:
            if not reply.has_error():
                records = reply.content.array_records.values()
                self._counted_bytes += sum(map(record_bytes, records))
        return fetched

    def take_bytes(self) -> int:
        """Return the bytes of all replies fetched since the last call.

        Whatever became of them: late, surplus and unusable ones have travelled too.
        """
        taken, self._counted_bytes = self._counted_bytes, 0
        return taken

    def _discard_late(self, grid: Grid) -> None:
        """Fetch and drop late replies: otherwise Flower keeps them in memory."""
        for batch in _batches(self._abandoned):
            ids = batch
            while late := self.counted(grid.pull_messages(ids)):
                answered = {reply.metadata.reply_to_message_id for reply in late}
                self._abandoned -= answered
                # Flower reports an error for a message that was answered before.
                ids = [i for i in ids if i not in answered]
                if not ids:
                    break


def record_bytes(record: ArrayRecord) -> int:
    """Return the bytes of a record's arrays as they travel."""
    return sum(len(array.data) for array in record.values())


def _batches(ids: Iterable[str]) -> list[list[str]]:
    every = list(ids)
    steps = range(0, len(every), _PULL_AT_ONCE)
    return [every[start : start + _PULL_AT_ONCE] for start in steps]

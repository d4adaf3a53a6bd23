"""Send a round's messages and yield the replies as they come.

Flower's own ``send_and_receive`` looks every three seconds in a deployment and holds
all replies until the last one. Replies are told apart by the message they answer: the
error reply for a node that died carries the SuperLink's id, not the node's.
"""

import time
from collections.abc import Iterable, Iterator, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

__all__ = ["Exchange"]

_POLL_SECONDS = 0.05
_MAX_POLL_SECONDS = 1.0
_PULL_AT_ONCE = 8
"""Replies fetched by one call: a fetched reply is in memory until it is judged."""


class Exchange:
    """The messages of the current round, and late replies to earlier ones."""

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}
        self._abandoned: set[str] = set()
        self.late_replies = 0
        """Replies to earlier rounds that came and were thrown away."""

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
                for reply in grid.pull_messages(ids):
                    found = True
                    partition = self._waiting.pop(reply.metadata.reply_to_message_id)
                    yield partition, reply
            if found:
                pause = _POLL_SECONDS
            elif self._waiting:
                self._discard_late(grid)
                time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
                pause = min(pause * 1.2, _MAX_POLL_SECONDS)

    def _discard_late(self, grid: Grid) -> None:
        """Fetch and drop late replies: otherwise Flower keeps them in memory."""
        for batch in _batches(self._abandoned):
            ids = batch
            while late := list(grid.pull_messages(ids)):
                answered = {reply.metadata.reply_to_message_id for reply in late}
                self.late_replies += len(late)
                self._abandoned -= answered
                # Flower reports an error for a message that was answered before.
                ids = [i for i in ids if i not in answered]
                if not ids:
                    break


def _batches(ids: Iterable[str]) -> list[list[str]]:
    every = list(ids)
    steps = range(0, len(every), _PULL_AT_ONCE)
    return [every[start : start + _PULL_AT_ONCE] for start in steps]

"""Send a round's messages and yield the replies as they come.

Flower's own ``send_and_receive`` looks every three seconds in a deployment and holds
all replies until the last one. Replies are told apart by the message they answer: the
error reply for a node that died carries the SuperLink's id, not the node's.
"""

import time
from collections.abc import Iterable, Iterator, Mapping

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from server_app.inbox import Answer, Inbox, is_simulated
from server_app.objects import Limits

__all__ = ["Exchange"]

_LOOK_SECONDS = 0.02
_POLL_SECONDS = 0.05
_MAX_POLL_SECONDS = 1.0


class Exchange:
    """The messages of the current round, and late replies to earlier ones.

    Parameters
    ----------
    limits : how much one reply may hold.
    """

    def __init__(self, limits: Limits) -> None:
        self._inbox = Inbox(MessageType.TRAIN, limits)
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

    def replies(self, grid: Grid, timeout_s: float) -> Iterator[tuple[int, Answer]]:
        """Yield (partition, reply) until all have answered or the time is over."""
        deadline = time.monotonic() + timeout_s
        # A simulation's replies are in the memory of this process.
        pause = shortest = _LOOK_SECONDS if is_simulated(grid) else _POLL_SECONDS
        while self._waiting and time.monotonic() < deadline:
            found = False
            for fetched in self._inbox.pull(grid, list(self._waiting)):
                # All at once: the caller may stop before it has seen every one.
                came = [(self._waiting.pop(r.question, None), r) for r in fetched]
                self.count(fetched)
                found = found or bool(fetched)
                yield from ((p, reply) for p, reply in came if p is not None)
                del fetched, came
                if time.monotonic() >= deadline:
                    break
            if found:
                pause = shortest
            elif self._waiting:
                self._discard_late(grid)
                time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
                if not is_simulated(grid):
                    pause = min(pause * 1.2, _MAX_POLL_SECONDS)

    def count(self, replies: Iterable[Answer]) -> None:
        """Count the bytes of replies that were fetched."""
        self._counted_bytes += sum(reply.size_bytes for reply in replies)

    def take_bytes(self) -> int:
        """Return the bytes of all replies fetched since the last call.

        Whatever became of them: late, surplus and unusable ones have travelled too.
        """
        taken, self._counted_bytes = self._counted_bytes, 0
        return taken

    def _discard_late(self, grid: Grid) -> None:
        """Fetch and drop late replies: otherwise Flower keeps them in memory."""
        while late := [a for f in self._inbox.pull(grid, self._abandoned) for a in f]:
            self.count(late)
            # Flower reports an error for a message that was answered before.
            self._abandoned -= {answer.question for answer in late}

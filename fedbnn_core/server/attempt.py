"""One attempt at a round: take replies until there are enough, or no more come."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from fedbnn_core.errors import ReplyError
from fedbnn_core.runs.log import one_line
from fedbnn_core.runs.metrics import Rejection
from fedbnn_core.server.record import RoundRecord
from fedbnn_core.server.reply import Reply
from fedbnn_core.server.reply_store import ReplyStore

__all__ = ["RoundAttempt"]

_log = logging.getLogger(__name__)


class RoundAttempt:
    """The clients that were asked, and their replies until these are aggregated.

    Parameters
    ----------
    asked : partition ids of the clients.
    quorum : replies without which the round has failed.
    wanted : replies after which it ends.
    folder : where replies beyond the memory budget wait.
    on_change : called with this attempt whenever a reply was taken.
    """

    def __init__(
        self,
        asked: Sequence[int],
        *,
        quorum: int,
        wanted: int,
        folder: Path,
        on_change: Callable[["RoundAttempt"], None] = lambda attempt: None,
    ) -> None:
        self.record = RoundRecord(asked=list(asked))
        self.quorum = quorum
        self._wanted = wanted
        self._store = ReplyStore(folder=folder)
        self._on_change = on_change
        self._started = time.monotonic()
        on_change(self)

    def __enter__(self) -> "RoundAttempt":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Forget the replies."""
        self._store.close()

    @property
    def asked(self) -> list[int]:
        """The clients that were asked to train."""
        return self.record.asked

    @property
    def accepted(self) -> int:
        """How many replies count so far."""
        return len(self._store)

    @property
    def is_full(self) -> bool:
        """Whether no more replies are wanted."""
        return len(self._store) >= self._wanted

    @property
    def has_quorum(self) -> bool:
        """Whether the round can be finished with the replies that came."""
        return len(self._store) >= self.quorum

    def take(
        self, client: int, read: Callable[[], Reply], *, size_bytes: int = 0
    ) -> None:
        """Take a client's reply, or note why it does not count.

        Parameters
        ----------
        client : who sent it; -1 for a node that is not known.
        read : returns the validated reply, or raises `ReplyError` with the reason.
        size_bytes : what travelled of it.
        """
        try:
            if client not in self.asked:
                raise ReplyError("it comes from a node that was not asked")
            self._store.add(read())
        except ReplyError as error:
            reason = one_line(error)
            self.record.rejected.append(Rejection(client, reason, size_bytes))
            _log.warning(
                "Client %s: reply rejected (%d bytes): %s", client, size_bytes, reason
            )
        self._on_change(self)

    def close(self, *, bytes_up: int) -> list[Reply]:
        """End the waiting; return the replies that count, in partition order."""
        record = self.record
        record.train_seconds = time.monotonic() - self._started
        record.bytes_up = bytes_up
        answered = {rejection.client for rejection in record.rejected}
        record.missing = [
            client
            for client in record.asked
            if client not in self._store and client not in answered
        ]
        if record.missing:
            _log.info("Round goes on without clients %s", record.missing)
        return self._store.in_partition_order()

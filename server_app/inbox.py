"""Fetch the answers of devices one by one; none of them can end the run.

A registered device need not be Flower's client: it can push any objects. So an answer
is told by the question that the SuperLink says it answers, not by what is in it; it is
fetched only up to `Limits`, and whatever comes becomes an `Answer`, a bad one with the
reason.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedbnn_core.errors import ReplyError
from server_app.download import Downloads, Fetched
from server_app.objects import Limits

__all__ = ["Answer", "Inbox", "answer_of", "is_simulated", "record_bytes"]

# Flower's grid of a simulation; its module differs between versions.
_SIMULATED_GRID = "InMemoryGrid"

_PULL_AT_ONCE = 8
"""Replies fetched by one call: a fetched reply is in memory until it is validated."""


@dataclass(frozen=True)
class Answer:
    """What came as the answer to a message."""

    question: str
    """Id of the message that it answers."""
    size_bytes: int = 0
    """What travelled: of a good answer its arrays, of another one all of it."""
    content: RecordDict | None = None
    """The records, if they could be read."""
    problem: str = ""
    """Why there is no content."""
    is_malformed: bool = False
    """Whether it could not be read at all, rather than reporting an error."""

    def records(self) -> RecordDict:
        """Return the content, or raise `ReplyError` with the problem."""
        if self.content is None:
            raise ReplyError(self.problem or "it is empty")
        return self.content


class Inbox:
    """Fetch answers, each within the limits.

    Parameters
    ----------
    message_type : of the questions.
    limits : how much one answer may hold; by default a few short records.
    """

    def __init__(self, message_type: str, limits: Limits | None = None) -> None:
        self._message_type = message_type
        self._limits = limits or Limits()
        self._downloads: Downloads | None = None

    def pull(self, grid: Grid, questions: Iterable[str]) -> Iterator[list[Answer]]:
        """Yield the answers to these messages that have come, as they are fetched.

        Each is handed out once; those of one list have been fetched together. One that
        is still on its way to the server does not hold up the others.
        """
        # Flower's grid of a deployment; in a simulation there is nothing to fetch.
        client = getattr(grid, "_runtime_client", None)
        ids = list(questions)
        if client is None:
            for start in range(0, len(ids), _PULL_AT_ONCE):
                batch = ids[start : start + _PULL_AT_ONCE]
                messages = grid.pull_messages(batch)
                yield [answer_of(m.metadata.reply_to_message_id, m) for m in messages]
            return
        if self._downloads is None:
            self._downloads = Downloads(
                client, grid.run.run_id, self._message_type, self._limits
            )
        for question in ids:
            fetched = self._downloads.fetch(question)
            if fetched is not None:
                yield [_of_fetched(fetched)]


def is_simulated(grid: Grid) -> bool:
    """Return whether clients are simulated by this process."""
    return type(grid).__name__ == _SIMULATED_GRID


def _of_fetched(fetched: Fetched) -> Answer:
    if fetched.message is None:
        return Answer(
            fetched.question,
            size_bytes=fetched.size_bytes,
            problem=fetched.problem,
            is_malformed=True,
        )
    return answer_of(fetched.question, fetched.message)


def answer_of(question: str, message: Message) -> Answer:
    """Return what a message holds; whatever that is, no exception leaves."""
    try:
        if message.has_error():
            reason = str(message.error.reason or "").strip().splitlines()
            last = reason[-1] if reason else "no reason"
            return Answer(question, problem=f"error {message.error.code}: {last}")
        content = message.content
        size = sum(map(record_bytes, content.array_records.values()))
        return Answer(question, size_bytes=size, content=content)
    except Exception as error:
        problem = str(ReplyError(f"malformed message: {error!r:.200}"))
        return Answer(question, problem=problem, is_malformed=True)


def record_bytes(record: ArrayRecord) -> int:
    """Return the bytes of a record's arrays as they travel."""
    return sum(len(array.data) for array in record.values())

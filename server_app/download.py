"""Fetch one message from the SuperLink, object by object and within limits."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.run import RunNotRunningException

from fedbnn_core.errors import ReplyError
from server_app.objects import DEPTH, Limits, decode_message

__all__ = ["Downloads", "Fetched"]

_MAX_TRIES = 20
"""How often a message is begun again whose objects have not all arrived."""
_MAX_FAILURES = 3
"""How often the SuperLink may fail to hand out the same message."""
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 10.0
_OBJECT_HEAD_BYTES = 2**12


@dataclass(frozen=True)
class Fetched:
    """A message that came, or why it cannot be used."""

    question: str
    """Id of the message that it answers."""
    size_bytes: int
    """What was fetched of it."""
    message: Message | None = None
    problem: str = ""


@dataclass
class _Open:
    """A message that has been announced, but not fetched yet."""

    envelope: Any
    """Its metadata as the SuperLink keeps them."""
    objects: list[str]
    """What to ask for next comes first: the message itself is sent last."""
    tries: int = 0
    next_at: float = 0.0
    fetched_bytes: int = 0


class _NotYet(Exception):  # noqa: N818  it is no error
    """An announced object has not arrived."""


class Downloads:
    """The messages under way from the SuperLink to this process.

    Parameters
    ----------
    client : Flower's client of the SuperLink.
    run_id : the run that the messages belong to.
    message_type : of the questions, and so of the answers.
    limits : what one message may hold.
    """

    def __init__(
        self, client: Any, run_id: int, message_type: str, limits: Limits
    ) -> None:
        from flwr.proto.node_pb2 import Node

        self._client = client
        self._run_id = run_id
        self._message_type = message_type
        self._limits = limits
        self._node = Node(node_id=SUPERLINK_NODE_ID)
        self._ceiling = _Ceiling.of(client)
        self._open: dict[str, _Open] = {}
        self._failures: dict[str, int] = {}

    def fetch(self, question: str) -> Fetched | None:
        """Return the answer to a message, or None if it has not come yet.

        Raises
        ------
        Exception
            Nobody answers at the SuperLink's address, or the run was stopped there.
        """
        try:
            download = self._open.get(question) or self._announced(question)
            if download is None:
                return None
            if time.monotonic() < download.next_at:
                return None
            message = self._read(download)
        except _NotYet:
            return None
        except (httpx.TransportError, RunNotRunningException):
            raise
        except ReplyError as error:
            problem = str(error)
        except httpx.HTTPStatusError as error:
            # It may be too busy; or what the device sent is too much for it.
            self._failures[question] = self._failures.get(question, 0) + 1
            if self._failures[question] < _MAX_FAILURES:
                return None
            problem = str(ReplyError(f"the SuperLink cannot hand it out: {error}"))
        except Exception as error:
            problem = str(ReplyError(f"malformed message: {error!r:.200}"))
        else:
            self._close(question)
            return Fetched(question, download.fetched_bytes, message)
        begun = self._open.get(question)
        self._close(question)
        return Fetched(question, begun.fetched_bytes if begun else 0, problem=problem)

    def _close(self, question: str) -> None:
        """Let the SuperLink forget a message."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        self._failures.pop(question, None)
        download = self._open.pop(question, None)
        if download is not None:
            # What stays there now is deleted when the run ends.
            with suppress(httpx.HTTPStatusError):
                self._client.ConfirmMessageReceived(
                    ConfirmMessageReceivedRequest(
                        node=self._node,
                        run_id=self._run_id,
                        message_object_id=download.envelope.message_id,
                    )
                )

    def _announced(self, question: str) -> _Open | None:
        """Ask whether an answer has come; the SuperLink tells it once."""
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        with self._ceiling.at(self._limits.tree_bytes):
            # One at a time: what spoils this call spoils it for one device only.
            answer = self._client.PullMessages(
                PullAppMessagesRequest(message_ids=[question])
            )
        for envelope, tree in zip(
            answer.messages_list, answer.message_object_trees, strict=False
        ):
            if envelope.metadata.reply_to_message_id == question:
                download = _Open(envelope.metadata, [envelope.metadata.message_id])
                # From here on the SuperLink can be told to forget it.
                self._open[question] = download
                download.objects += _other_objects(tree, self._limits)
                return download
        return None

    def _read(self, download: _Open) -> Message:
        contents: dict[str, bytes] = {}
        left = self._limits.total_bytes
        for name in download.objects:
            try:
                content = self._object(name, left)
            except (_NotYet, httpx.HTTPStatusError):
                download.tries += 1
                if download.tries >= _MAX_TRIES:
                    raise ReplyError(
                        "objects that it announced have not arrived"
                    ) from None
                pause = _FIRST_PAUSE_SECONDS * 2**download.tries
                download.next_at = time.monotonic() + min(pause, _LONGEST_PAUSE_SECONDS)
                # Ask for this one first: nothing is held while it is missing.
                download.objects.remove(name)
                download.objects.insert(0, name)
                raise
            download.fetched_bytes += len(content)
            left -= len(content)
            contents[name] = content
        envelope = download.envelope
        message = decode_message(envelope.message_id, contents, self._limits)
        _require_same(message, envelope)
        is_of_device = envelope.src_node_id != SUPERLINK_NODE_ID
        if is_of_device and envelope.message_type != self._message_type:
            raise ReplyError(
                f"its message_type is {envelope.message_type!r:.80}, expected "
                f"{self._message_type!r}"
            )
        return message

    def _object(self, name: str, left: int) -> bytes:
        from flwr.proto.message_pb2 import PullObjectRequest

        problem = f"it has more than {self._limits.total_bytes} bytes"
        with self._ceiling.at(left + _OBJECT_HEAD_BYTES, problem):
            answer = self._client.PullObject(
                PullObjectRequest(node=self._node, run_id=self._run_id, object_id=name)
            )
        if not answer.object_found:
            raise ReplyError("objects that it announced were never sent")
        if not answer.object_available:
            raise _NotYet
        if len(answer.object_content) > left:
            raise ReplyError(problem)
        return bytes(answer.object_content)


def _other_objects(tree: Any, limits: Limits) -> list[str]:
    """Return the ids of a tree's objects but the first, each once."""
    found: dict[str, None] = {}
    count, pending = 0, [(tree, 1)]
    while pending:
        node, level = pending.pop()
        count += 1
        if level > DEPTH:
            raise ReplyError(f"its tree has more than {DEPTH} levels")
        if count > limits.objects:
            raise ReplyError(f"its tree has more than {limits.objects} objects")
        found[node.object_id] = None
        pending += [(child, level + 1) for child in node.children]
    found.pop(tree.object_id)
    return list(found)


def _require_same(message: Message, envelope: Any) -> None:
    """Raise `ReplyError` unless a message says of itself what the SuperLink knows."""
    inside = message.metadata
    for name in (
        *("run_id", "src_node_id", "dst_node_id"),
        *("reply_to_message_id", "message_type"),
    ):
        said, known = getattr(inside, name), getattr(envelope, name)
        if said != known:
            raise ReplyError(f"its {name} is {said!r:.80}, announced {known!r:.80}")


@dataclass
class _Ceiling:
    """Refuse a response before its body is read."""

    _local: threading.local = field(default_factory=threading.local)

    @classmethod
    def of(cls, client: Any) -> "_Ceiling":
        """Watch over the responses to Flower's client."""
        ceiling = cls()
        http = getattr(client, "_client", None)
        if isinstance(http, httpx.Client):
            http.event_hooks["response"].append(ceiling._check)
        return ceiling

    @contextmanager
    def at(self, size: int, problem: str = "its tree is too large") -> Iterator[None]:
        """Let no response have more bytes than this in here."""
        self._local.limit = size, problem
        try:
            yield
        finally:
            self._local.limit = None

    def _check(self, response: httpx.Response) -> None:
        limit = getattr(self._local, "limit", None)
        if limit is not None and response.is_success:
            size, problem = limit
            # The SuperLink's web server always tells the length.
            if int(response.headers.get("content-length", size + 1)) > size:
                raise ReplyError(problem)

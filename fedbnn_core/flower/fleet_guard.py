"""Limit what a device can ask of the SuperLink.

Flower's Fleet API takes whatever a registered device sends: messages that answer
nothing, trees of any size, objects without end, as many calls at once as it likes. This
interceptor stands behind the check of the device's key, so a node id is the sender's.

Of each device few calls at once reach the database, so that all devices get a share.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from logging import WARNING
from typing import Any

import grpc
from flwr.common.logger import log

from fedbnn_core.flower.announced_trees import AnnouncedTrees
from fedbnn_core.flower.fleet_limits import FleetLimits, Refused, exhausted, invalid

__all__ = ["FleetGuard"]

_UNLIMITED = {
    *("ActivateNode", "DeactivateNode", "RegisterNode", "UnregisterNode"),
    "SendNodeHeartbeat",
}
"""Small calls; a late heartbeat would count as a lost device."""
_MAX_LOGGED = 20
_PENALTY_SECONDS = 1.0
"""How long a device waits for the answer to a refused call after so many of them."""


@dataclass
class _Question:
    """A message that a device has pulled."""

    objects: int
    """How many a reply may announce."""
    pushes: int
    """How often it may still be answered."""


@dataclass
class _Upload:
    """A reply that a device has announced."""

    bytes: int
    """How many it may still send."""
    calls: int
    """How many objects it may still send, those sent twice included."""


@dataclass
class _Node:
    """What is known of a device."""

    turns: threading.Semaphore
    lock: threading.Lock = field(default_factory=threading.Lock)
    calls: int = 0
    refusals: int = 0
    next_pull: float = 0.0
    questions: OrderedDict[str, _Question] = field(default_factory=OrderedDict)
    uploads: OrderedDict[str, _Upload] = field(default_factory=OrderedDict)


class FleetGuard(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuse calls beyond the limits, and let the others take turns."""

    def __init__(self, limits: FleetLimits | None = None) -> None:
        self._limits = limits or FleetLimits()
        self._lock = threading.Lock()
        self._nodes: dict[int, _Node] = {}
        self._trees = AnnouncedTrees(self._limits)

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: Any
    ) -> Any:
        """Put the limits in front of one method of the Fleet API."""
        handler = continuation(handler_call_details)
        method = handler_call_details.method.rpartition("/")[2]
        if handler is None or method in _UNLIMITED:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            partial(self._call, method, handler.unary_unary),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _call(
        self, method: str, serve: Callable[[Any, Any], Any], request: Any, context: Any
    ) -> Any:
        node_id = request.node.node_id
        node = self._node(node_id)
        try:
            with self._admitted(node):
                with node.lock:
                    allowed = self._check(method, node, request)
                    wait = self._wait(method, node)
                time.sleep(wait)
                with node.turns:
                    answer = serve(request, context)
                with node.lock:
                    self._remember(method, node, answer, allowed)
                return answer
        except Refused as refused:
            if node.refusals <= _MAX_LOGGED:
                log(WARNING, "Refused %s of node %d: %s", method, node_id, refused)
            context.abort(refused.code, str(refused))

    def _node(self, node_id: int) -> _Node:
        with self._lock:
            if node_id not in self._nodes:
                turns = threading.Semaphore(self._limits.turns)
                self._nodes[node_id] = _Node(turns)
            return self._nodes[node_id]

    @contextmanager
    def _admitted(self, node: _Node) -> Iterator[None]:
        with node.lock:
            if node.calls >= self._limits.calls:
                # A code after which Flower's client tries again.
                raise Refused(
                    grpc.StatusCode.UNAVAILABLE,
                    f"more than {self._limits.calls} calls at once",
                )
            node.calls += 1
        try:
            yield
        except Refused:
            node.refusals += 1
            if node.refusals > _MAX_LOGGED:
                time.sleep(_PENALTY_SECONDS)
            raise
        finally:
            with node.lock:
                node.calls -= 1

    def _wait(self, method: str, node: _Node) -> float:
        """Return the seconds that a call comes too early."""
        now = time.monotonic()
        if method != "PullMessages" or self._limits.pull_seconds <= 0:
            return 0.0
        begin = max(now, node.next_pull)
        node.next_pull = begin + self._limits.pull_seconds
        return begin - now

    def _check(self, method: str, node: _Node, request: Any) -> int:
        """Raise `Refused` for a call beyond the limits; return a tree's objects."""
        if method == "PushMessages":
            return self._check_reply(node, request)
        if method == "PushObject":
            self._check_object(node, request)
        if (
            method == "ConfirmMessageReceived"
            and request.message_object_id not in node.questions
        ):
            raise invalid("it confirms a message that it did not receive")
        return 0

    def _check_reply(self, node: _Node, request: Any) -> int:
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise invalid("not one message with one tree of objects")
        question = node.questions.get(
            request.messages_list[0].metadata.reply_to_message_id
        )
        if question is None:
            raise invalid("it answers a message that it did not receive")
        if question.pushes < 1:
            raise exhausted("it has answered this message often enough")
        question.pushes -= 1
        tree = request.message_object_trees[0]
        count = self._trees.check(tree, question.objects)
        tree.CopyFrom(self._trees.flat(tree))
        return count

    def _check_object(self, node: _Node, request: Any) -> None:
        upload = node.uploads.get(request.session_id)
        if upload is None:
            raise invalid("an object of no reply that it announced")
        upload.calls -= 1
        upload.bytes -= len(request.object_content)
        if upload.calls < 0:
            raise exhausted("more objects than it announced")
        if upload.bytes < 0:
            limit = self._limits.reply_bytes
            raise exhausted(f"the objects of its reply have more than {limit} bytes")

    def _remember(self, method: str, node: _Node, answer: Any, allowed: int) -> None:
        limits = self._limits
        if method == "PullMessages":
            for envelope, tree in zip(
                answer.messages_list, answer.message_object_trees, strict=True
            ):
                objects = limits.objects_per_object * self._trees.learn(tree)
                node.questions[envelope.metadata.message_id] = _Question(
                    objects=min(limits.objects, limits.spare_objects + objects),
                    pushes=limits.pushes,
                )
        if method == "PushMessages":
            # Twice: an object whose answer was lost is sent again.
            node.uploads[answer.session_id] = _Upload(
                bytes=limits.reply_bytes, calls=2 * allowed + limits.pushes
            )
        for remembered in (node.questions, node.uploads):
            while len(remembered) > limits.remembered:
                remembered.popitem(last=False)

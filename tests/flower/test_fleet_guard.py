"""What the SuperLink takes from a device: through a real gRPC server and client."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from flwr.proto import fleet_pb2_grpc
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    Message,
    Metadata,
    ObjectTree,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node

from fedbnn_core.flower import fleet_guard
from fedbnn_core.flower.fleet_guard import FleetGuard
from fedbnn_core.flower.fleet_limits import FleetLimits

LIMITS = FleetLimits(
    request_bytes=2**16,
    reply_bytes=1000,
    spare_objects=4,
    objects_per_object=2,
    objects=12,
    depth=3,
    pushes=2,
    remembered=3,
    calls=6,
    turns=2,
    pull_seconds=0.0,
)


class Fleet(fleet_pb2_grpc.FleetServicer):
    """Flower's side: hands out one message, counts what arrives."""

    def __init__(self):
        self.arrived = []
        self.question_objects = 2
        self.questions = 0
        self.sessions = 0
        self.busy = self.most_busy = 0
        self.hold = threading.Event()
        self.hold.set()

    def PullMessages(self, request, context):  # noqa: N802
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        self.hold.wait(20)
        self.busy -= 1
        self.questions += 1
        name = f"question {request.node.node_id} {self.questions}"
        tree = flat_tree(self.question_objects)
        message = Message(metadata=Metadata(message_id=name))
        return PullMessagesResponse(
            messages_list=[message], message_object_trees=[tree]
        )

    def PushMessages(self, request, context):  # noqa: N802
        self.arrived.append("reply")
        self.sessions += 1
        return PushMessagesResponse(session_id=f"session {self.sessions}")

    def PushObject(self, request, context):  # noqa: N802
        self.arrived.append("object")
        return PushObjectResponse(stored=True)

    def ConfirmMessageReceived(self, request, context):  # noqa: N802
        self.arrived.append("receipt")
        return ConfirmMessageReceivedResponse()

    def SendNodeHeartbeat(self, request, context):  # noqa: N802
        return SendNodeHeartbeatResponse(success=True)


def flat_tree(objects):
    tree = ObjectTree(object_id="0")
    for n in range(1, objects):
        tree.children.add(object_id=str(n))
    return tree


def deep_tree(levels):
    tree = inner = ObjectTree(object_id="0")
    for n in range(1, levels):
        inner = inner.children.add(object_id=str(n))
    return tree


class Device:
    """A device's calls."""

    def __init__(self, stub, number):
        self.stub, self.node = stub, Node(node_id=number)

    def pull(self):
        answer = self.stub.PullMessages(PullMessagesRequest(node=self.node))
        return answer.messages_list[0].metadata.message_id

    def reply(self, question, tree=None, copies=1):
        message = Message(metadata=Metadata(reply_to_message_id=question))
        return self.stub.PushMessages(
            PushMessagesRequest(
                node=self.node,
                messages_list=[message] * copies,
                message_object_trees=[tree or flat_tree(3)] * copies,
            )
        ).session_id

    def send(self, session, size=10):
        request = PushObjectRequest(
            node=self.node, session_id=session, object_content=bytes(size)
        )
        return self.stub.PushObject(request)

    def confirm(self, question):
        return self.stub.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, message_object_id=question)
        )


@pytest.fixture
def fleet():
    return Fleet()


@pytest.fixture
def device(fleet):
    options = [("grpc.max_receive_message_length", LIMITS.request_bytes)]
    server = grpc.server(
        ThreadPoolExecutor(32), interceptors=[FleetGuard(LIMITS)], options=options
    )
    fleet_pb2_grpc.add_FleetServicer_to_server(fleet, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = fleet_pb2_grpc.FleetStub(channel)
        yield lambda number=7: Device(stub, number)
    server.stop(0)


def refused(call, *arguments, **options):
    with pytest.raises(grpc.RpcError) as error:
        call(*arguments, **options)
    return error.value.details()


def test_a_reply_passes(device, fleet):
    honest = device()
    question = honest.pull()
    honest.confirm(question)
    session = honest.reply(question)
    for _ in range(3):
        assert honest.send(session).stored
    assert fleet.arrived == ["receipt", "reply", "object", "object", "object"]


def test_a_reply_answers_what_the_device_received(device, fleet):
    question = device(1).pull()
    for reply_to in ("", "nobody", question):
        assert "did not receive" in refused(device(2).reply, reply_to)
        assert "did not receive" in refused(device(2).confirm, reply_to)
    assert fleet.arrived == []


def test_old_messages_are_forgotten(device):
    honest = device()
    questions = [honest.pull() for _ in range(LIMITS.remembered + 1)]
    assert "did not receive" in refused(honest.reply, questions[0])
    for question in questions[1:]:
        honest.reply(question)


@pytest.mark.parametrize("copies", [0, 2])
def test_one_message_at_a_time(device, fleet, copies):
    hostile = device()
    question = hostile.pull()
    assert "not one message" in refused(hostile.reply, question, copies=copies)
    assert fleet.arrived == []


def test_a_message_is_answered_a_few_times(device, fleet):
    hostile = device()
    question = hostile.pull()
    for _ in range(LIMITS.pushes):
        hostile.reply(question)
    assert "often enough" in refused(hostile.reply, question)
    assert fleet.arrived == ["reply"] * LIMITS.pushes


@pytest.mark.parametrize(
    ("question_objects", "most"),
    # 4 of any reply, 2 more for each of the question, never more than 12.
    [(1, 6), (2, 8), (100, 12)],
)
def test_objects_of_a_reply(device, fleet, question_objects, most):
    fleet.question_objects = question_objects
    hostile = device()
    question = hostile.pull()
    hostile.reply(question, flat_tree(most))
    said = refused(hostile.reply, question, flat_tree(most + 1))
    assert said == f"its reply has more than {most} objects"


def test_levels_of_a_reply(device):
    hostile = device()
    question = hostile.pull()
    hostile.reply(question, deep_tree(3))
    said = refused(hostile.reply, question, deep_tree(4))
    assert "more than 3 levels" in said


def test_objects_belong_to_a_reply_of_the_device(device, fleet):
    other, hostile = device(1), device(2)
    session = other.reply(other.pull())
    for name in ("", "session 99", session):
        assert "no reply that it announced" in refused(hostile.send, name)
    assert fleet.arrived == ["reply"]


def test_bytes_of_a_reply(device, fleet):
    hostile = device()
    session = hostile.reply(hostile.pull())
    hostile.send(session, 600)
    assert "more than 1000 bytes" in refused(hostile.send, session, 401)
    assert fleet.arrived == ["reply", "object"]


def test_objects_are_sent_twice_at_most(device, fleet):
    hostile = device()
    session = hostile.reply(hostile.pull(), flat_tree(2))
    for _ in range(2 * 2 + LIMITS.pushes):
        hostile.send(session)
    assert "more objects than it announced" in refused(hostile.send, session)


def test_a_request_is_refused_before_it_is_read(device, fleet):
    hostile = device()
    session = hostile.reply(hostile.pull())
    assert "larger than max" in refused(hostile.send, session, LIMITS.request_bytes)
    assert fleet.arrived == ["reply"]


def test_a_device_has_few_calls_at_once_and_others_get_their_turn(device, fleet):
    hostile, honest = device(1), device(2)
    fleet.hold.clear()
    with ThreadPoolExecutor(32) as pool:
        calls = [pool.submit(hostile.pull) for _ in range(20)]
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            ended = [call for call in calls if call.done()]
            if len(ended) == 20 - LIMITS.calls:
                break
            time.sleep(0.01)
        for call in ended:
            assert "6 calls at once" in call.exception().details()
        late = pool.submit(honest.pull)
        # A heartbeat waits for nobody.
        beat = SendNodeHeartbeatRequest(node=hostile.node)
        assert hostile.stub.SendNodeHeartbeat(beat, timeout=10).success
        fleet.hold.set()
        assert late.result(20).startswith("question 2")
    assert fleet.most_busy <= 2 * LIMITS.turns
    assert sum(call.exception() is None for call in calls) == LIMITS.calls


def test_questions_for_work_are_spaced():
    guard = FleetGuard(FleetLimits(pull_seconds=5.0))
    node = guard._node(1)
    assert guard._wait("PullMessages", node) == 0.0
    assert guard._wait("PullObject", node) == 0.0
    assert 4.0 < guard._wait("PullMessages", node) <= 5.0
    assert 9.0 < guard._wait("PullMessages", node) <= 10.0


def test_the_refused_wait_after_a_while(device, monkeypatch):
    waited = []
    monkeypatch.setattr(fleet_guard.time, "sleep", waited.append)
    hostile = device()
    for _ in range(fleet_guard._MAX_LOGGED + 3):
        refused(hostile.reply, "nobody")
    assert waited.count(fleet_guard._PENALTY_SECONDS) == 3

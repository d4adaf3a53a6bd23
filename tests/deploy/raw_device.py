"""A device that speaks the protocol itself: a node key and gRPC stubs, no client."""

import io
import threading
import time
from typing import ClassVar

import grpc
import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PushObjectRequest,
)
from flwr.supercore.task_identity import TaskIdentity

from benchmarks._light_device import LightDevice
from client_app.app import app as client_app
from fedbnn_core.messages import Identity
from fedbnn_core.wire.container import CONTAINER, pack, unpack
from tests.apps.hostile_trees import CASES, SILENT, Honest, Sent, hostile, made, name_of


class RawDevice(LightDevice):
    """Signs in with a bundle's key; introduces itself, then sends what it likes.

    Parameters
    ----------
    bundle : path of its bundle.
    cases : names of what it sends in the place of trained replies, one a round; nothing
        of any sense after the last one.
    number : the number that it claims; by default its own.
    """

    heartbeat_seconds = 120

    def __init__(self, bundle, cases=(), *, number=None):
        super().__init__(bundle)
        self.cases = list(cases)
        self.tried = {}
        """What was announced in which round, from 0."""
        self.turned_away = {}
        """Why the SuperLink itself refused what was announced in a round."""
        if number is not None:
            self.number = number
        self.sent = []
        """Types of the messages that were answered."""
        self.refused = []

    def step(self):
        """Answer the message that waits, if there is one."""
        for message in self.waiting_messages():
            self.answer(message)

    def pull(self, run_id, name):
        # They tell each other: the model is the same for all.
        if name not in self._pulled:
            self._pulled[name] = super().pull(run_id, name)
        return self._pulled[name]

    def answer(self, message):
        kind = message.metadata.message_type
        if kind == "query":
            identity = Identity(
                version=__import__("fedbnn_core").__version__,
                partition_id=self.number,
                device_name="<b>evil</b>\x1b[31m",
                stores_models=True,
            )
            record = ConfigRecord(identity.to_record())
            reply = Message(RecordDict({"identity": record}), reply_to=message)
            sent = self._whole(reply)
        elif kind == "train":
            reply = Message(self.trained(message), reply_to=message)
            self.claim(reply)
            number = message.content["config"]["round"]
            case = self.cases[number] if number < len(self.cases) else "nothing"
            sent = hostile(case, reply) if case in CASES else self._nothing(number)
        else:
            # The model at the end is answered with garbage.
            reply = Message(RecordDict(), reply_to=message)
            self.claim(reply)
            sent = self._nothing("model")
        announced = self.push(reply, sent)
        self.sent.append(kind)
        if kind == "train" and announced:
            self.tried[number] = case
        elif kind == "train":
            # So that the round need not wait for this device.
            self.turned_away[number] = self.refused[-1]
            self.push(reply, self._nothing(number))

    def trained(self, message):
        """Return what an honest device of this number would send.

        One trains for all: nobody weighs more than one image.
        """
        number = message.content["config"]["round"]
        if number not in self._trained:
            context = Context(
                run_id=message.metadata.run_id,
                node_id=self.node.node_id,
                node_config={"partition-id": self.number},
                state=RecordDict(),
                run_config=self.run_config,
            )
            self._trained[number] = client_app(message, context).content
        content = dict(self._trained[number])
        for key, record in content.items():
            # What one withholds no other one may send.
            if isinstance(record, ArrayRecord) and SILENT & set(self.cases):
                content[key] = self._own(record)
        metrics = dict(content["metrics"])
        metrics |= {"partition-id": self.number, "num-examples": 1}
        return RecordDict({**content, "metrics": MetricRecord(metrics)})

    def _own(self, record):
        """Return arrays that no other device has: Flower stores equal ones once."""
        files = unpack(record[CONTAINER].data)
        arrays = {
            key: np.load(io.BytesIO(file), allow_pickle=False)
            for key, file in files.items()
        }
        factor = np.float32(1 + 1e-6 * (1 + self.number))
        own = {k: a * factor if a.dtype == np.float32 else a for k, a in arrays.items()}
        assert not np.array_equal(pack(own), pack(arrays))
        return ArrayRecord({CONTAINER: Array(pack(own))})

    def _nothing(self, number):
        """Return a message without any sense that no other device sends."""
        body = f"{self.number} {number}".encode()
        return Sent(made("Message", (), b"\xff\xfe\xfd\xfc" + body))

    run_config: ClassVar[dict] = {}
    _pulled: ClassVar[dict] = {}
    _trained: ClassVar[dict] = {}

    def _whole(self, reply):
        self.claim(reply)
        honest = Honest(reply)
        return Sent(honest.root, honest.contents[:-1])

    def push(self, reply, sent):
        """Announce a tree, then send its objects; return whether it was taken."""
        proto = message_to_proto(remove_content_from_message(reply))
        proto.metadata.message_id = name_of(sent.root)
        run_id = proto.metadata.run_id
        try:
            answer = self.call(
                "PushMessages",
                PushMessagesRequest(
                    node=self.node,
                    messages_list=[proto],
                    message_object_trees=[sent.tree()],
                ),
            )
        except grpc.RpcError as error:
            self.refused.append(str(error))
            return False
        for name, content in sent.pushed().items():
            if name not in answer.objects_to_push:
                continue
            request = PushObjectRequest(
                node=self.node,
                run_id=run_id,
                object_id=name,
                object_content=content,
                session_id=answer.session_id,
            )
            try:
                self.call("PushObject", request)
            except grpc.RpcError as error:
                self.refused.append(str(error))
        return True


class RawDevices(threading.Thread):
    """Let several raw devices answer, until they are told to stop."""

    def __init__(self, devices):
        super().__init__(daemon=True)
        self.devices = devices
        self.ended = threading.Event()
        self.problem = None

    def run(self):
        beat = time.monotonic()
        try:
            while not self.ended.wait(0.2):
                for device in self.devices:
                    try:
                        device.step()
                    except grpc.RpcError as error:
                        device.refused.append(str(error))
                if time.monotonic() - beat > 30:
                    beat = time.monotonic()
                    for device in self.devices:
                        device.heartbeat()
        except Exception as error:
            if not self.ended.is_set():
                self.problem = error

    def close(self):
        self.ended.set()
        self.join(60)


class Flood(threading.Thread):
    """Repeat one kind of call without end, as fast as they are answered."""

    KINDS = ("pull", "announce", "upload", "confirm")

    def __init__(self, device, kind):
        super().__init__(daemon=True)
        self.device, self.kind = device, kind
        self.ended = threading.Event()
        self.calls = self.taken = 0
        self.problem = None

    def run(self):
        try:
            method, request = getattr(self, f"_{self.kind}")()
            while not self.ended.is_set():
                self.calls += 1
                try:
                    self.device.call(method, request)
                    self.taken += 1
                except grpc.RpcError as error:
                    self.device.refused.append(error.code())
        except Exception as error:
            self.problem = error

    def _pull(self):
        return "PullMessages", PullMessagesRequest(node=self.device.node)

    def _announce(self):
        """A reply to nobody with many objects."""
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        question = Message(RecordDict(), dst_node_id=7, message_type="train")
        question.metadata.__dict__["_message_id"] = "f" * 64
        proto = message_to_proto(Message(RecordDict(), reply_to=question))
        tree = ObjectTree(object_id=f"{0:064x}")
        tree.children.extend(ObjectTree(object_id=f"{n:064x}") for n in range(1, 5000))
        proto.metadata.message_id = tree.object_id
        return "PushMessages", PushMessagesRequest(
            node=self.device.node, messages_list=[proto], message_object_trees=[tree]
        )

    def _upload(self):
        """An object of a reply that was never announced."""
        content = made("ArrayChunk", body=bytes(4 * 2**20))
        return "PushObject", PushObjectRequest(
            node=self.device.node, object_id=name_of(content), object_content=content
        )

    def _confirm(self):
        """The receipt of a message that another device got."""
        return "ConfirmMessageReceived", ConfirmMessageReceivedRequest(
            node=self.device.node, message_object_id="a" * 64
        )

"""A device without torch: a node key and the stubs of Flower's Fleet API."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from fedbnn_core import __version__
from fedbnn_core.fleet import read_bundle
from fedbnn_core.flower.short_waits import GrowingPause
from fedbnn_core.messages import Identity


class LightDevice:
    """Signs in with a bundle's key and answers messages.

    Parameters
    ----------
    bundle : path of its bundle.
    """

    heartbeat_seconds = 30.0
    """After how long without a sign of life the server takes it for gone."""

    def __init__(self, bundle: str | Path) -> None:
        self.bundle = read_bundle(Path(bundle))
        self.number = self.bundle.partition_id
        self.key: Any = load_ssh_private_key(self.bundle.private_key.encode(), None)
        self.public = public_key_to_bytes(self.key.public_key())
        credentials = grpc.ssl_channel_credentials(self.bundle.ca_certificate.encode())
        # Channels with the same target would share one connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.secure_channel(self.bundle.server, credentials, options)
        self.stub = FleetStub(self.channel)
        answer = self.call(
            "ActivateNode",
            ActivateNodeRequest(
                public_key=self.public, heartbeat_interval=self.heartbeat_seconds
            ),
        )
        self.node = Node(node_id=answer.node_id)

    def call(self, method: str, request: Any) -> Any:
        """Call the server, signed as Flower's client does."""
        stamp = now().isoformat()
        metadata = (
            (PUBLIC_KEY_HEADER, self.public),
            (TIMESTAMP_HEADER, stamp),
            (SIGNATURE_HEADER, sign_message(self.key, stamp.encode("ascii"))),
        )
        return getattr(self.stub, method)(request, metadata=metadata, timeout=120)

    def waiting_messages(self) -> list[Message]:
        """Fetch the messages that wait for this device."""
        pulled = self.call("PullMessages", PullMessagesRequest(node=self.node))
        messages = []
        for proto, tree in zip(
            pulled.messages_list, pulled.message_object_trees, strict=True
        ):
            run_id = proto.metadata.run_id
            names = {node.object_id for node in iterate_object_tree(tree)}
            contents = {name: self.pull(run_id, name) for name in names}
            message = inflate_object_from_contents(tree.object_id, contents)
            message.metadata.__dict__["_message_id"] = tree.object_id
            messages.append(message)
        return messages

    def pull(self, run_id: int, name: str) -> bytes:
        """Return an object; the server announces a message before its objects."""
        request = PullObjectRequest(node=self.node, run_id=run_id, object_id=name)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            answer = self.call("PullObject", request)
            if answer.object_available:
                return bytes(answer.object_content)
            time.sleep(0.1)
        raise TimeoutError(f"object {name} does not come")

    def introduction(self) -> RecordDict:
        """Return the answer to the server's question who this is."""
        identity = Identity(
            version=__version__,
            partition_id=self.number,
            device_name=f"light {self.number}",
        )
        return RecordDict({Identity.RECORD: ConfigRecord(identity.to_record())})

    def claim(self, reply: Message) -> None:
        """Write sender and receiver into a reply, as Flower's client app does."""
        metadata = reply.metadata.__dict__
        metadata["_src_node_id"] = self.node.node_id
        metadata["_dst_node_id"] = 1

    def push(self, message: Message, content: RecordDict) -> None:
        """Answer a message: announce the tree, then send its objects."""
        reply = Message(content, reply_to=message)
        self.claim(reply)
        objects = get_all_nested_objects(reply)
        proto = message_to_proto(remove_content_from_message(reply))
        proto.metadata.message_id = reply.object_id
        answer = self.call(
            "PushMessages",
            PushMessagesRequest(
                node=self.node,
                messages_list=[proto],
                message_object_trees=[get_object_tree(reply)],
            ),
        )
        for name, item in objects.items():
            if name in answer.objects_to_push:
                self.call(
                    "PushObject",
                    PushObjectRequest(
                        node=self.node,
                        run_id=proto.metadata.run_id,
                        object_id=name,
                        object_content=item.deflate(),
                        session_id=answer.session_id,
                    ),
                )

    def heartbeat(self) -> None:
        """Tell the server that this device is there."""
        self.call(
            "SendNodeHeartbeat",
            SendNodeHeartbeatRequest(
                node=self.node, heartbeat_interval=self.heartbeat_seconds
            ),
        )


class LightThread(threading.Thread):
    """Let a light device look for messages as often as a real one does.

    Parameters
    ----------
    device : the device.
    trained : returns the reply of a device to a message that orders training.
    """

    def __init__(
        self,
        device: LightDevice,
        trained: Callable[[LightDevice, Message], RecordDict],
    ) -> None:
        super().__init__(daemon=True)
        self.device, self.trained = device, trained
        self.answered = 0
        """Replies to orders, each taken whole by the server."""
        self.problems: list[str] = []
        self.ended = threading.Event()

    def run(self) -> None:
        """Look, answer, pause, until told to end."""
        pause = GrowingPause(0.05, 0.1, 3.0)
        beat = time.monotonic()
        while not self.ended.wait(pause.seconds()):
            try:
                for message in self.device.waiting_messages():
                    self._answer(message)
                    pause.busy()
                if time.monotonic() - beat > self.device.heartbeat_seconds / 2:
                    beat = time.monotonic()
                    self.device.heartbeat()
            except Exception as error:
                if not self.ended.is_set():
                    self.problems.append(repr(error))

    def _answer(self, message: Message) -> None:
        if message.metadata.message_type == "query":
            self.device.push(message, self.device.introduction())
        else:
            self.device.push(message, self.trained(self.device, message))
            self.answered += 1

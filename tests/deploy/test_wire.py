"""What really crosses the network between a device and the server: gRPC, arrays."""

import re
import socket
import threading

import numpy as np
import pytest

from client_app.local_round import run_local_round
from fedbnn_core.config import RunConfig
from fedbnn_core.messages import TrainOrder
from fedbnn_core.methods import create_method
from tests.deploy.site import QUICK

pytestmark = pytest.mark.deploy


class Tap:
    """A relay that keeps a copy of all bytes, by direction."""

    def __init__(self, target):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.target = target
        self.connections = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            host, port = self.target.split(":")
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection((host, int(port)))
            except OSError:
                return
            up, down = bytearray(), bytearray()
            self.connections.append((up, down))
            for source, sink, copy in ((client, server, up), (server, client, down)):
                threading.Thread(
                    target=self._pump, args=(source, sink, copy), daemon=True
                ).start()

    @staticmethod
    def _pump(source, sink, copy):
        try:
            while data := source.recv(65536):
                copy += data
                sink.sendall(data)
        except OSError:
            pass
        finally:
            sink.close()


def share_found(array, stream, step=4096):
    """Return the share of an array's 64-byte pieces that the stream holds."""
    content = np.ascontiguousarray(array).tobytes()
    pieces = [content[i : i + 64] for i in range(0, len(content) - 64, step)]
    return sum(piece in stream for piece in pieces) / len(pieces)


def largest(arrays):
    return max(arrays.values(), key=lambda array: array.nbytes)


def test_weights_travel_over_grpc_on_the_fleet_port(site):
    """In plain text, to be seen; the same protocol runs under TLS otherwise."""
    site.serve("--insecure")
    tap = Tap(site.address)
    device = site.start(
        *("device", "--insecure", "--server", tap.address, "--verbose"),
        *("--state", site.folder / "device", "--threads", "1"),
        name="device",
    )
    device.wait_for("Connected")
    asked = ("deploy", "status", "--control", site.control, "--insecure")
    shown = site.fedbnn(*asked)
    assert shown.returncode == 0, shown.stderr
    # Without keys there are no names: Flower's number of the node stands for it.
    assert re.search(r"\d{5,}.*online", shown.stdout), shown.stdout
    command = site.run_arguments(num_server_rounds=1, num_partitions=1)
    run = site.fedbnn(*command, "--insecure", timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    # The longest one is the SuperNode's; a short one looked for TLS before it.
    up, down = (bytes(way) for way in max(tap.connections, key=lambda c: len(c[0])))
    assert up.startswith(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert b"application/grpc" in up
    for call in (b"PullObject", b"PushObject", b"PullMessages"):
        assert b"/flwr.proto.Fleet/" + call in up
    assert b"HTTP/1.1" not in up
    config = RunConfig.from_mapping(QUICK | {"num-server-rounds": 1}, complete=False)
    broadcast = create_method(config, (1, 28, 28), 10).template.broadcast
    assert share_found(largest(broadcast), down) > 0.9
    # The same round, trained here: what the device must have sent, bit for bit.
    order = TrainOrder(0, 1, partition_file="", num_partitions=1)
    node = {"partition-id": 0}
    update, _ = run_local_round(config.to_mapping(), node, order, broadcast)
    assert share_found(largest(update.arrays), up) > 0.9
    for kind in ("r1", "r2"):
        matrices = {k: v for k, v in update.rotations.items() if k.endswith(kind)}
        assert share_found(largest(matrices), up, step=256) > 0.9
    (line,) = site.run_directory().read_metrics()
    # The arrays, the packed model and little else.
    assert line.bytes_down < len(down) < 1.2 * line.bytes_down + 200_000
    assert line.bytes_up < len(up) < 1.2 * line.bytes_up + 200_000
    assert b"rotations" in up  # A record of their own.

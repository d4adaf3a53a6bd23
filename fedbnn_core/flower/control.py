"""The operator's connection to a SuperLink: devices, runs and their logs.

The control port has no login: whoever reaches it can run code on every device. So it
listens on loopback, and these functions are meant for the server's own host.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fedbnn_core.errors import FleetError
from fedbnn_core.fleet.credentials import public_pem
from fedbnn_core.fleet.registry import Device
from fedbnn_core.flower.child import loopback_exemption
from fedbnn_core.flower.version import require_grpc_flower

if TYPE_CHECKING:
    from flwr.supercore.control import ControlHttpClient

__all__ = ["Connection", "Endpoint", "NodeState", "RunState", "connected"]

_UNREGISTERED = "unregistered"
_RETRY_SECONDS = 2.0
_PATIENCE_SECONDS = 60.0
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Endpoint:
    """Where a SuperLink's control port is, and whom to trust there."""

    address: str = "127.0.0.1:8000"
    ca_certificate: Path | None = None
    """The fleet's authority; None speaks plain text."""

    def flower_settings(self) -> dict[str, str | bool]:
        """Return the entry of Flower's config.toml that leads there."""
        if self.ca_certificate is None:
            return {"address": self.address, "insecure": True}
        return {
            "address": self.address,
            "root-certificates": str(self.ca_certificate.absolute()),
        }


@dataclass(frozen=True)
class NodeState:
    """A node that the SuperLink knows."""

    node_id: int
    name: str
    status: str
    """registered (never seen), online or offline."""
    last_change: str
    """When it last connected or left, ISO 8601; empty if never."""


@dataclass(frozen=True)
class RunState:
    """A run that the SuperLink knows."""

    run_id: int
    status: str
    """Such as ``running`` or ``finished:completed``."""
    details: str
    submitted: str
    bytes_sent: int
    """What devices received, all together."""
    bytes_received: int

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, well or not."""
        return self.status.startswith("finished")


class Connection:
    """What an operator can ask the SuperLink."""

    def __init__(self, client: "ControlHttpClient") -> None:
        self._client = client

    def nodes(self) -> dict[bytes, NodeState]:
        """Return the registered nodes by their public key (PEM)."""
        from flwr.proto.control_pb2 import ListNodesRequest

        answer = self._client.ListNodes(ListNodesRequest())
        return {
            bytes(node.public_key): NodeState(
                node.node_id,
                node.name,
                node.status,
                max(node.last_activated_at or "", node.last_deactivated_at or ""),
            )
            for node in answer.nodes_info
            if node.status != _UNREGISTERED
        }

    def reconcile(self, devices: list[Device]) -> tuple[list[str], list[str]]:
        """Register exactly these devices; return the names added and removed.

        Nodes that are not among them are unregistered, which cuts them off at once.
        """
        from flwr.proto.control_pb2 import RegisterNodeRequest, UnregisterNodeRequest

        wanted = {public_pem(device.public_key.encode()): device for device in devices}
        present = self.nodes()
        removed = {key: node for key, node in present.items() if key not in wanted}
        added = {key: dev for key, dev in wanted.items() if key not in present}
        for node in removed.values():
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
        for key, device in added.items():
            self._client.RegisterNode(
                RegisterNodeRequest(public_key=key, name=device.name)
            )
        return (
            [device.name for device in added.values()],
            [node.name or str(node.node_id) for node in removed.values()],
        )

    def runs(self) -> list[RunState]:
        """Return the runs, newest first."""
        from flwr.proto.control_pb2 import ListRunsRequest

        answer = _patiently(lambda: self._client.ListRuns(ListRunsRequest()))
        states = [
            RunState(
                run.run_id,
                ":".join(filter(None, (run.status.status, run.status.sub_status))),
                run.status.details,
                run.pending_at,
                run.bytes_sent,
                run.bytes_recv,
            )
            for run in answer.run_dict.values()
        ]
        return sorted(states, key=lambda run: run.submitted, reverse=True)

    def run(self, run_id: int) -> RunState:
        """Return one run; raise `FleetError` if there is none with this number."""
        for state in self.runs():
            if state.run_id == run_id:
                return state
        raise FleetError(
            f"the server knows no run {run_id}; see 'fedbnn deploy status'"
        )

    def stop(self, run_id: int) -> None:
        """Ask the SuperLink to end a run."""
        from flwr.proto.control_pb2 import StopRunRequest

        self._client.StopRun(StopRunRequest(run_id=run_id))

    def log(self, run_id: int) -> list[str]:
        """Return the lines that a run has logged so far."""
        from flwr.proto.control_pb2 import StreamLogsRequest

        request = StreamLogsRequest(run_id=run_id, after_timestamp=0.0)
        for answer in self._client.StreamLogs(request):
            return str(answer.log_output).splitlines()
        return []

    def follow(self, run_id: int) -> Iterator[str]:
        """Yield a run's log line by line until the run has ended."""
        import httpx
        from flwr.proto.control_pb2 import StreamLogsRequest

        after, rest = 0.0, ""
        while True:
            finished = self.run(run_id).is_finished
            request = StreamLogsRequest(run_id=run_id, after_timestamp=after)
            try:
                for answer in self._client.StreamLogs(request):
                    after = max(after, answer.latest_timestamp)
                    *lines, rest = (rest + answer.log_output).split("\n")
                    yield from lines
            except httpx.HTTPError:
                # Asking for the run tells whether the server is gone or only busy.
                finished = False
            # The stream also ends when the server closes it: look once more then.
            if finished:
                if rest:
                    yield rest
                return
            time.sleep(_RETRY_SECONDS)


def _patiently(ask: Callable[[], Answer]) -> Answer:
    """Ask again while the server is too busy to answer; a closed port counts at once.

    Flower's database gives up a request that waited for others too long.
    """
    import httpx

    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except (httpx.HTTPStatusError, httpx.TimeoutException) as error:
            is_busy = (
                isinstance(error, httpx.TimeoutException)
                or error.response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR
            )
            if not is_busy or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_SECONDS)


@contextmanager
def connected(endpoint: Endpoint) -> Iterator[Connection]:
    """Connect to a SuperLink's control port.

    Raises
    ------
    FleetError
        Nobody answers there, or it is not the fleet's server.
    """
    require_grpc_flower()
    import httpx
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    certificate = endpoint.ca_certificate
    # Flower's client takes its proxy from the environment.
    os.environ.update(loopback_exemption())
    client = ControlHttpClient.from_server_address(
        server_address=endpoint.address,
        insecure=certificate is None,
        root_certificates=certificate.read_bytes() if certificate else None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="fedbnn")],
    )
    try:
        yield Connection(client)
    except httpx.HTTPStatusError as error:
        raise FleetError(
            f"the server refused: {error.response.text.strip() or error}"
        ) from error
    except httpx.HTTPError as error:
        raise FleetError(
            f"no FedBNN server answers on {endpoint.address} ({error}); start it with "
            "'fedbnn fleet serve', or give its control address as --control"
        ) from error
    finally:
        client.close()

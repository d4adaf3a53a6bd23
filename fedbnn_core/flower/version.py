"""Refuse a Flower whose devices would not speak gRPC with the server.

Flower 1.40 and later accept the same options, warn, and quietly serve the Fleet API
over HTTP/1.1 on the control port. That port can run code on every device and must not
be reachable for them, so such a version is refused rather than warned about.
"""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from fedbnn_core.errors import FleetError, RunError

__all__ = [
    "FLEET_API_LINE",
    "FLOWER_VERSION",
    "require_grpc_flower",
    "require_simulation_engine",
]

FLOWER_VERSION = "1.39.0"
FLEET_API_LINE = "Starting Fleet API (gRPC-rere)"
"""What a SuperLink logs when the Fleet API is really gRPC."""

_GRPC_CLIENT = "flwr.client.grpc_rere_client"


def require_simulation_engine() -> None:
    """Raise `RunError` unless Flower and its simulation engine are installed."""
    for module in ("flwr", "ray"):
        if find_spec(module) is None:
            raise RunError(
                f"a simulated federation needs {module}, which is not installed; "
                "install it with: pip install 'fedbnn[simulation]'"
            )


def require_grpc_flower() -> None:
    """Raise `FleetError` unless the installed Flower is the one that was tested."""
    advice = f"install the right one with: pip install 'flwr=={FLOWER_VERSION}'"
    try:
        found = version("flwr")
    except PackageNotFoundError as error:
        raise FleetError(
            "Flower is not installed; install FedBNN with: pip install 'fedbnn[device]'"
        ) from error
    if found != FLOWER_VERSION:
        raise FleetError(
            f"FedBNN needs Flower {FLOWER_VERSION}, whose devices and server talk "
            f"gRPC on a port of their own; installed is {found}. {advice}"
        )
    try:
        has_grpc = find_spec(_GRPC_CLIENT) is not None
    except ModuleNotFoundError:
        has_grpc = False
    if not has_grpc:
        raise FleetError(f"this Flower has no gRPC Fleet API; {advice}")

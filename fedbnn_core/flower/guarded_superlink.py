"""Flower's SuperLink with limits for devices: ``python -m`` this module.

It takes the arguments of ``flower-superlink``. Flower has no setting for what is set
here, so two names in its modules are replaced before it starts; the exact version of
Flower that a fleet needs makes sure that they are there.
"""

import importlib
import sys
from functools import partial
from typing import Any

from fedbnn_core.flower.fair_database import fair_sessions
from fedbnn_core.flower.fleet_guard import FleetGuard
from fedbnn_core.flower.fleet_limits import FleetLimits
from fedbnn_core.flower.version import require_grpc_flower

__all__ = ["guard_flower", "main"]


def guard_flower(limits: FleetLimits) -> None:
    """Let the SuperLinks of this process limit devices."""
    command: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    storage: Any = importlib.import_module("flwr.supercore.sql_mixin")
    command.generic_create_grpc_server = partial(
        _create_server, command.generic_create_grpc_server, limits
    )
    storage.SqlMixin.session = fair_sessions(storage.SqlMixin.session)


def _create_server(create: Any, limits: FleetLimits, **settings: Any) -> Any:
    settings["interceptors"] = [
        *(settings.get("interceptors") or ()),
        FleetGuard(limits),
    ]
    settings["max_message_length"] = limits.request_bytes
    return create(**settings)


def main() -> None:
    """Run the SuperLink with the arguments of this process."""
    require_grpc_flower()
    guard_flower(FleetLimits())
    from flwr.superlink.cli import flower_superlink

    sys.argv[0] = "flower-superlink"
    flower_superlink()


if __name__ == "__main__":
    main()

"""Flower's SuperLink starts with the limits for devices."""

import importlib
import subprocess
import sys

from fedbnn_core.flower.fleet_guard import FleetGuard
from fedbnn_core.flower.fleet_limits import FleetLimits
from fedbnn_core.flower.guarded_superlink import guard_flower
from fedbnn_core.flower.superlink import ServerSettings, superlink_command


def test_flower_is_guarded(monkeypatch):
    """The names in Flower that are replaced are there and used."""
    command = importlib.import_module("flwr.superlink.cli.flower_superlink")
    storage = importlib.import_module("flwr.supercore.sql_mixin")
    made = {}
    monkeypatch.setattr(
        command, "generic_create_grpc_server", lambda **settings: made.update(settings)
    )
    before = storage.SqlMixin.session
    monkeypatch.setattr(storage.SqlMixin, "session", before)
    limits = FleetLimits(request_bytes=12345)
    guard_flower(limits)
    command.generic_create_grpc_server(interceptors=["auth"], max_message_length=2**31)
    assert made["max_message_length"] == 12345
    # Behind the check of the key: what comes last is called last.
    first, last = made["interceptors"]
    assert (first, type(last)) == ("auth", FleetGuard)
    assert storage.SqlMixin.session is not before


def test_the_server_starts_it_and_it_takes_flowers_arguments():
    command = superlink_command(None, ServerSettings("127.0.0.1:9092", insecure=True))
    at = command.index("fedbnn_core.flower.guarded_superlink") + 1
    shown = subprocess.run(
        [*command[:at], "--help"], capture_output=True, text=True, timeout=120
    )
    assert shown.returncode == 0, shown.stderr
    assert command[0] == sys.executable
    for option in command[at:]:
        if option.startswith("--"):
            assert option in shown.stdout

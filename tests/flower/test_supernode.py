"""The device's wrapper of Flower's SuperNode, without starting one."""

import sys
from pathlib import Path

import pytest

from fedbnn_core.errors import FleetError
from fedbnn_core.fleet import Bundle
from fedbnn_core.flower import supernode
from fedbnn_core.flower import version as flower_version
from fedbnn_core.flower.supernode import (
    DeviceSettings,
    run_device,
    supernode_command,
)

flower_config = pytest.importorskip("flwr.common.config")


def settings(**changes):
    values = {
        "server": "h:9092",
        "partition_id": 3,
        "name": "camera",
        "state": Path("/var/lib/x"),
    }
    return DeviceSettings(**(values | changes))


@pytest.mark.parametrize("path", ["/data/my photos", '/a"b', "/a\\b", "/a=b c=d"])
def test_flower_reads_the_node_config_back(path):
    text = settings(data=path).node_config()
    read = flower_config.parse_config_args([text])
    assert read == {
        "partition-id": 3,
        "device-name": "camera",
        "model-dir": "/var/lib/x/models",
        "device": "auto",
        "client-threads": 0,
        "data": path,
    }


def test_a_path_that_flower_cannot_carry_is_refused():
    with pytest.raises(FleetError, match="without quotes"):
        settings(data="/it's").node_config()


def test_tls_and_key_are_the_default_and_insecure_is_explicit(tmp_path):
    command = supernode_command(settings(), tmp_path, 1)
    assert "--insecure" not in command
    assert str(tmp_path / "ca.crt") == command[command.index("--root-certificates") + 1]
    assert "--auth-supernode-private-key" in command
    assert "--insecure" in supernode_command(settings(insecure=True), None, 1)


@pytest.mark.parametrize("found", ["1.41.0", "1.40.0", "1.38.0"])
def test_a_flower_whose_fleet_api_was_not_tested_as_grpc_is_refused(monkeypatch, found):
    monkeypatch.setattr(flower_version, "version", lambda name: found)
    with pytest.raises(FleetError, match=rf"installed is {found}.*flwr==1.39.0"):
        flower_version.require_grpc_flower()


def test_the_installed_flower_passes_and_one_without_the_client_does_not(monkeypatch):
    flower_version.require_grpc_flower()
    monkeypatch.setattr(flower_version, "_GRPC_CLIENT", "flwr.client.no_such_client")
    with pytest.raises(FleetError, match="no gRPC Fleet API"):
        flower_version.require_grpc_flower()


@pytest.mark.parametrize(
    "ending",
    [
        "sys.exit('Traceback: database is locked')",
        # A SuperNode whose heartbeat thread has died goes on for ever.
        "print('  File connection.py, in send_node_heartbeat', flush=True); sleep(99)",
    ],
)
def test_a_connected_device_joins_again_after_a_fault(tmp_path, monkeypatch, ending):
    """It gives up when the server says no, not when the SuperNode breaks down."""
    script = tmp_path / "node.py"
    script.write_text(
        "import sys; from pathlib import Path; from time import sleep\n"
        "starts = Path(__file__).with_name('starts')\n"
        "starts.open('a').write('x')\n"
        "if len(starts.read_text()) > 2: sys.exit('must be registered via the CLI')\n"
        f"print('SuperNode ID: 1', flush=True)\n{ending}\n"
    )
    monkeypatch.setattr(
        supernode, "supernode_command", lambda *_: [sys.executable, str(script)]
    )
    monkeypatch.setattr(supernode, "_wait_for_server", lambda *_: None)
    monkeypatch.setattr(supernode, "_REFUSAL_PAUSE_SECONDS", 0.01)
    said = []
    with pytest.raises(FleetError, match="devices with a key only"):
        run_device(settings(state=tmp_path, insecure=True), None, say=said.append)
    assert (tmp_path / "starts").read_text() == "xxx"
    assert sum("Connected" in text for text in said) == 2


def test_keys_that_a_killed_device_left_are_removed(tmp_path, monkeypatch):
    """But not those of another device that shares the state folder."""
    bundle = Bundle("camera", "h:9092", 0, "authority", "secret")
    kept, old = tmp_path / "kept", tmp_path / "keys-killed"
    kept.write_text("no key")
    old.mkdir()
    (old / "key").write_text("secret")
    seen = []
    monkeypatch.setattr(supernode, "_wait_for_server", lambda *_: None)
    monkeypatch.setattr(supernode, "refusal_of", lambda *_: "Invalid timestamp")

    def run_once(command, *_):
        seen.append(sorted(path.parent.name for path in tmp_path.glob("keys-*/key")))
        if len(seen) == 1:
            with pytest.raises(FleetError, match="clocks"):
                run_device(settings(state=tmp_path), bundle, say=print)
        return [], False

    monkeypatch.setattr(supernode, "_run_once", run_once)
    with pytest.raises(FleetError, match="clocks"):
        run_device(settings(state=tmp_path), bundle, say=print)
    assert [len(names) for names in seen] == [1, 2]
    assert "keys-killed" not in seen[0]
    assert kept.exists()
    assert not list(tmp_path.glob("keys-*"))


def test_a_lost_connection_and_its_return_are_told(tmp_path, monkeypatch):
    script = tmp_path / "node.py"
    script.write_text(
        "print('SuperNode ID: 1', flush=True)\n"
        "print('WARNING : Connection attempt failed, retrying in 1 seconds')\n"
        "print('WARNING : Connection attempt failed, retrying in 2 seconds')\n"
        "print('INFO : Connection successful after 3 seconds and 3 tries.')\n"
        "import sys; sys.exit('must be registered via the CLI')\n"
    )
    monkeypatch.setattr(
        supernode, "supernode_command", lambda *_: [sys.executable, str(script)]
    )
    monkeypatch.setattr(supernode, "_wait_for_server", lambda *_: None)
    said = []
    with pytest.raises(FleetError):
        run_device(settings(state=tmp_path, insecure=True), None, say=said.append)
    assert said == [
        "Connected; waiting for runs. Ctrl-C ends it.",
        "The connection to the server is lost; trying again ...",
        "Connected again.",
    ]

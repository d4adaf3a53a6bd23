"""The device's wrapper of Flower's SuperNode, without starting one."""

from pathlib import Path

import pytest

from fedbnn_core.errors import FleetError
from fedbnn_core.launch import flower_version
from fedbnn_core.launch.supernode import DeviceSettings, explain, supernode_command

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


@pytest.mark.parametrize(
    ("line", "words", "may_pass"),
    [
        ("[code: 2004] Failed to activate SuperNode.", "does not accept", True),
        ("Invalid timestamp", "clocks differ", False),
        ("ERROR : Exit Code: 606", "different versions of Flower", False),
        ("ERROR : Exit Code: 302", "key in the bundle", False),
        ("something new", "something new", False),
    ],
)
def test_refusals_are_put_into_words(line, words, may_pass):
    explanation = explain(["INFO : Starting Flower SuperNode", line])
    assert words in explanation.text
    assert explanation.may_pass == may_pass


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

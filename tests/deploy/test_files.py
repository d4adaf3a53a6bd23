"""What the compose files publish, and whether the systemd unit's command is one."""

import configparser
import shlex

import pytest
import yaml
from typer.testing import CliRunner

from fedbnn_core.cli import app
from fedbnn_core.errors import FleetError
from tests.deploy.site import ROOT


@pytest.mark.parametrize(
    ("name", "ports"),
    [("compose", []), ("docker/server", ["9092:9092"]), ("docker/client", [])],
)
def test_nothing_but_the_port_for_devices_is_published(name, ports):
    services = yaml.safe_load((ROOT / f"{name}.yaml").read_text())["services"]
    published = [port for entry in services.values() for port in entry.get("ports", [])]
    assert published == ports
    assert not any(entry.get("network_mode") == "host" for entry in services.values())


def test_the_systemd_unit_starts_a_device():
    """Its command is understood, and misses nothing but the bundle."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read(ROOT / "docker" / "fedbnn-device.service")
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/bin/fedbnn")
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, FleetError), result.output
    bundle = arguments[arguments.index("--bundle") + 1]
    assert f"there is no bundle at {bundle}" in str(result.exception)

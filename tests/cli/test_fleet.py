"""The commands `fedbnn fleet`, without a server."""

import json
import stat

import pytest
from typer.testing import CliRunner

from fedbnn_core.cli import app
from fedbnn_core.errors import FleetError
from fedbnn_core.fleet import Fleet, read_bundle
from fedbnn_core.flower import superlink


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    """Return a function that runs `fedbnn fleet ...` and returns its output."""
    monkeypatch.setenv("FEDBNN_FLEET", str(tmp_path / "fleet"))

    def run(*arguments):
        result = CliRunner().invoke(app, ["fleet", *map(str, arguments)])
        if isinstance(result.exception, FleetError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


@pytest.fixture
def served(monkeypatch):
    """Return where `fedbnn fleet serve` would have listened, call by call."""
    addresses = []
    monkeypatch.setattr(
        superlink,
        "serve_fleet",
        lambda fleet, settings, **_: addresses.append(settings.fleet_address),
    )
    return addresses


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_server_listens_where_the_bundles_call(fleet, served):
    fleet("init", "--host", "a.example", "--port", 9500)
    fleet("serve")
    fleet("init", "--keep", "--host", "a.example", "--host", "fd00::1")
    fleet("serve")
    fleet("serve", "--fleet-address", "10.0.0.1:7")
    assert served == ["0.0.0.0:9500", "[::]:9500", "10.0.0.1:7"]


def test_an_insecure_server_keeps_to_its_machine(fleet, served):
    fleet("serve", "--insecure")
    assert served == ["127.0.0.1:9092"]


@pytest.mark.parametrize(
    "host",
    ["", "h:9092", "https://x.org", "a b", "[::1]", "-x", "10.0.0.256", "*.x.org"],
)
def test_what_is_no_host_is_refused_before_anything_is_made(fleet, tmp_path, host):
    with pytest.raises(FleetError, match="neither a host name nor an IP address"):
        fleet("init", "--host", host)
    assert not (tmp_path / "fleet").exists()


def test_another_host_joins_a_fleet_that_is_kept(fleet, tmp_path):
    made = Fleet(tmp_path / "fleet")
    fleet("init", "--host", "old.example")
    fleet("add", "camera")
    certificate = made.server_certificate.read_bytes()
    assert "stays as it is" in fleet("init", "--keep", "--host", "OLD.example")
    assert made.server_certificate.read_bytes() == certificate
    assert "new.example:9092" in fleet("init", "--keep", "--host", "new.example")
    assert {"old.example", "new.example"} <= set(made.server_names())
    fleet("add", "robot")
    assert read_bundle(made.bundle("camera")).server == "old.example:9092"
    assert read_bundle(made.bundle("robot")).server == "new.example:9092"
    assert "stays as it is" in fleet("init", "--keep", "--host", "new.example")


@pytest.mark.parametrize("to_file", [False, True])
def test_a_bundle_can_be_had_again(fleet, tmp_path, to_file):
    fleet("init", "--host", "a.example")
    target = tmp_path / "camera.bundle"
    printed = fleet("add", "camera", "--bundle", target if to_file else "-")
    first = target.read_text() if to_file else printed
    assert json.loads(first)["device"] == "camera"
    assert fleet("bundle", "camera") == first
    kept = tmp_path / "fleet" / "bundles" / "camera.bundle"
    assert mode(kept) == 0o600
    assert not to_file or mode(target) == 0o600
    with pytest.raises(FleetError, match="'fedbnn fleet bundle camera' prints"):
        fleet("add", "camera", "--bundle", "-")
    assert fleet("add", "--keep", "camera", "--bundle", "-") == first


def test_a_kept_device_gets_a_lost_file_again(fleet, tmp_path):
    fleet("init", "--host", "a.example")
    target = tmp_path / "camera.bundle"
    fleet("add", "--keep", "camera", "--bundle", target)
    first = target.read_bytes()
    target.unlink()
    fleet("add", "--keep", "camera", "--bundle", target)
    assert target.read_bytes() == first


def test_no_file_is_overwritten_by_a_bundle(fleet, tmp_path):
    fleet("init", "--host", "a.example")
    target = tmp_path / "bundle"
    target.write_text("another device's")
    with pytest.raises(FleetError, match="exists already"):
        fleet("add", "camera", "--bundle", target)
    assert target.read_text() == "another device's"
    assert Fleet(tmp_path / "fleet").devices() == []


def test_bundles_of_unknown_devices_and_lost_copies_are_explained(fleet, tmp_path):
    fleet("init", "--host", "a.example")
    fleet("add", "camera")
    with pytest.raises(FleetError, match="no device 'robot'; devices: camera"):
        fleet("bundle", "robot")
    Fleet(tmp_path / "fleet").bundle("camera").unlink()
    with pytest.raises(FleetError, match="'fedbnn fleet remove camera'"):
        fleet("bundle", "camera")

"""Devices that must not join, and what their owners read."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedbnn_core.fleet import Fleet, read_bundle, write_bundle
from fedbnn_core.fleet.credentials import make_node_key

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    from tests.deploy.site import Site

    site = Site(tmp_path_factory.mktemp("site"))
    site.init("camera", "robot")
    site.server = site.serve()
    site.server.wait_for("robot may join")
    yield site
    site.close()


def refused(site, *options, bundle=None, prefix=(), **environment):
    """Start a device that shall be refused; return its words."""
    device = site.start(
        *("device", "--no-wait", "--state", site.folder / "refused"),
        *(("--bundle", bundle) if bundle else ()),
        *options,
        name="refused",
        prefix=prefix,
        **environment,
    )
    assert device.process.wait(120) == 1, device.text()
    return device.text()


def test_an_unregistered_key(served, tmp_path):
    stranger = replace(
        read_bundle(served.bundle("camera")),
        private_key=make_node_key().private.decode(),
    )
    write_bundle(tmp_path / "stranger", stranger)
    assert "does not accept this device's key" in refused(
        served, bundle=tmp_path / "stranger"
    )


def test_a_plain_text_device(served):
    words = refused(served, "--insecure", "--server", served.address)
    assert "speaks TLS only" in words
    assert "nothing is encrypted" in words


def test_a_device_of_another_fleet(served, tmp_path):
    other = Fleet.create(tmp_path / "other", ["127.0.0.1"])
    _, bundle = other.add("camera")
    words = refused(served, "--server", served.address, bundle=bundle)
    assert "not the server of this bundle's fleet" in words


@pytest.fixture(scope="module")
def clock_off(tmp_path_factory):
    """Return a function: the words before a command whose clock shall be off."""
    compiler = shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and gcc; run make system-deps")
    library = tmp_path_factory.mktemp("clock") / "clock_off.so"
    source = Path(__file__).parent / "clock_off.c"
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", library, source], check=True
    )
    return lambda hours: (
        *("env", f"LD_PRELOAD={library}", f"CLOCK_OFF={3600 * hours}"),
    )


@pytest.mark.deploy
def test_a_device_whose_clock_is_an_hour_behind(served, clock_off):
    words = refused(served, bundle=served.bundle("robot"), prefix=clock_off(-1))
    assert "clocks differ by more than 5 minutes" in words


def test_the_control_port_is_no_port_for_devices(served):
    words = refused(served, "--server", served.control, bundle=served.bundle("robot"))
    assert "not the Fleet API" in words


@pytest.mark.deploy
def test_a_removed_device_is_cut_off_and_cannot_come_back(served):
    bundle = served.folder / "kept.bundle"
    shutil.copy(served.bundle("camera"), bundle)
    device = served.start(
        *("device", "--no-wait", "--state", served.folder / "camera"),
        *("--bundle", bundle),
        name="camera",
    )
    device.wait_for("Connected")
    removed = served.fedbnn("fleet", "remove", "camera")
    assert removed.returncode == 0, removed.stderr
    assert device.process.wait(60) == 1, device.text()
    assert "no longer accepts this device" in device.text()
    words = refused(served, bundle=bundle)
    # Which of the two depends on the call that the server refuses first.
    cut_off = "no longer accepts this device", "does not accept this device's key"
    assert any(phrase in words for phrase in cut_off), words


@pytest.mark.deploy
def test_a_server_whose_certificate_has_expired_meanwhile(site, clock_off):
    site.init("camera")
    Fleet(site.fleet).renew(days=-0.5)
    # For this server it is yesterday, when the certificate was good.
    site.serve(prefix=clock_off(-18))
    words = refused(site, bundle=site.bundle("camera"))
    assert "has expired" in words
    assert "fedbnn fleet renew" in words


def test_an_expired_certificate_stops_the_server_before_it_starts(site):
    site.init()
    Fleet(site.fleet).renew(days=-0.5)
    done = site.fedbnn("fleet", "serve", "--fleet-address", site.address)
    assert done.returncode == 1
    assert "server certificate expired on" in done.stderr
    assert "fedbnn fleet renew" in done.stderr

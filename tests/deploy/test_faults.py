"""Devices that die, lag or are missing in the middle of a run."""

import os
import signal
import time

import pytest

from tests.deploy.site import children_of

pytestmark = pytest.mark.deploy

# Long enough for several messages of a device, short for a test.
DEADLINE = 75


def clients_of(site):
    return [line.clients for line in site.run_directory().read_metrics()]


def start_run(site, **overrides):
    return site.start(*site.run_arguments(**overrides), name="run")


def test_kill_9_in_a_round_and_a_device_that_comes_back(site):
    site.init("a", "b", "c")
    site.serve()
    devices = {name: site.device(name) for name in ("a", "b", "c")}
    for device in devices.values():
        device.wait_for("Connected")
    run = start_run(site, num_server_rounds=6, round_timeout_s=DEADLINE, quorum=0.5)
    run.wait_for("round 1/6")
    (supernode,) = children_of(devices["c"].process.pid)
    # Both at once, as when a device loses power.
    os.kill(devices["c"].process.pid, signal.SIGKILL)
    os.kill(supernode, signal.SIGKILL)
    began = time.monotonic()
    run.wait_for("round 2/6", DEADLINE + 90)
    waited = time.monotonic() - began
    assert waited < DEADLINE + 60
    again = site.device("c")
    again.wait_for("Connected")
    assert run.process.wait(400) == 0, run.text()
    rounds = clients_of(site)
    assert rounds[0] == [0, 1, 2]
    assert [0, 1] in rounds[1:]
    assert rounds[-1] == [0, 1, 2], rounds


def test_a_device_slower_than_the_deadline_does_not_stop_the_round(site):
    site.init("quick", "slow")
    site.serve()
    quick, slow = site.device("quick"), site.device("slow")
    for device in (quick, slow):
        device.wait_for("Connected")
    run = start_run(site, num_server_rounds=2, round_timeout_s=40, quorum=0.5)
    run.wait_for("Run directory")
    # Stopped, not dead: it holds its message and says nothing.
    supernode = children_of(slow.process.pid)[0]
    group = os.getpgid(supernode)
    os.killpg(group, signal.SIGSTOP)
    try:
        assert run.process.wait(300) == 0, run.text()
    finally:
        os.killpg(group, signal.SIGCONT)
    lines = site.run_directory().read_metrics()
    assert [line.clients for line in lines][-1] == [0]
    assert len(lines) == 2


def test_below_the_quorum_the_run_waits_and_says_how_many_are_missing(site):
    site.init("a", "b")
    site.serve()
    site.device("a").wait_for("Connected")
    run = start_run(site, quorum=1.0, num_server_rounds=1)
    run.wait_for("1 connected, 2 needed, 1 missing")
    site.device("b")
    assert run.process.wait(300) == 0, run.text()
    assert clients_of(site) == [[0, 1]]


def test_after_the_limit_the_run_ends_with_what_it_has_and_can_go_on(site):
    site.init("a", "b")
    site.serve()
    devices = [site.device("a"), site.device("b")]
    for device in devices:
        device.wait_for("Connected")
    run = start_run(site, quorum=1.0, num_server_rounds=3, wait_timeout_s=20)
    run.wait_for("round 1/3")
    devices[1].end()
    assert run.process.wait(400) == 1, run.text()
    assert "1 of 2 needed clients were connected after 20 s" in run.text()
    assert "Traceback" not in run.text()
    directory = site.run_directory()
    assert f"-c resume={directory.path}" in run.text()
    summary = directory.read_json("summary.json")
    assert (summary["status"], summary["rounds"]) == ("stopped", 1)
    assert (directory.path / "best.safetensors").is_file()
    status = site.fedbnn("deploy", "status", "--control", site.control)
    assert "finished:failed" in status.stdout
    # With one device less it needs a smaller quorum.
    again = site.fedbnn(
        *("deploy", "run", "--control", site.control),
        *("-c", f"resume={directory.path}", "-c", "quorum=0.5"),
        timeout=400,
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert clients_of(site) == [[0, 1], [0], [0]]

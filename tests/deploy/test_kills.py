"""kill -9 of a fleet's processes at random moments: the run ends with the same bits."""

import os
import random
import signal
import time

import psutil
import pytest

from tests.deploy.site import Site, wait_until

pytestmark = pytest.mark.deploy

ROUNDS = 4
SETTINGS = {
    "num_server_rounds": ROUNDS,
    # A local round of some seconds, so that most moments are within a training.
    "local_epochs": 3,
    "train_limit": 1500,
    # Both devices in every round: whoever is missing is waited for.
    "quorum": 1.0,
    "wait_timeout_s": 300,
    "max_round_retries": 10,
    "uplink_bits": 8,
    "deliver_model": "false",
}


def processes_below(pid, word):
    """Return the processes below one whose command line has a word."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if any(word in part for part in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def start_devices(site):
    devices = {name: site.device(name) for name in ("a", "b")}
    for device in devices.values():
        device.wait_for("Connected")
    return devices


def hashes_of(site):
    summary = site.run_directory().read_json("summary.json")
    assert summary["rounds"] == ROUNDS
    clients = [line.clients for line in site.run_directory().read_metrics()]
    assert clients == [[0, 1]] * ROUNDS
    return summary["final_sha256"], summary["best_sha256"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A fleet, and the hashes of a run that nobody disturbs."""
    site = Site(tmp_path_factory.mktemp("kills"))
    site.init("a", "b")
    site.server = site.serve()
    site.devices = start_devices(site)
    began = time.monotonic()
    done = site.run(**SETTINGS)
    assert done.returncode == 0, done.stdout + done.stderr
    site.seconds = time.monotonic() - began
    site.calm = hashes_of(site)
    yield site
    site.close()


def disturbed(site, kill):
    """Run with a kill at a random moment of its rounds; return what was said."""
    run = site.start(*site.run_arguments(**SETTINGS), name="run")
    run.wait_for("Run directory")
    pause = random.SystemRandom().uniform(0, site.seconds / 2)
    print(f"killed after {pause:.2f} s")
    time.sleep(pause)
    kill()
    return run


def test_the_warm_process(fleet):
    """A message in work goes on; the next one is handled without it, then with a new
    one."""
    device = fleet.devices["a"].process.pid

    def kill():
        # The first one; those after it are its copies.
        os.kill(min(processes_below(device, "client_app.warm")), signal.SIGKILL)

    run = disturbed(fleet, kill)
    assert run.process.wait(300) == 0, run.text()
    assert hashes_of(fleet) == fleet.calm
    wait_until(
        lambda: processes_below(device, "client_app.warm"), 30, "new warm process"
    )


def test_the_copy_that_works_on_a_message(fleet):
    device = fleet.devices["b"].process.pid

    def copies():
        warm = processes_below(device, "client_app.warm")
        return [p for p in warm if psutil.Process(p).ppid() in warm]

    def kill():
        for copy in wait_until(copies, 60, "copy at work"):
            os.kill(copy, signal.SIGKILL)

    run = disturbed(fleet, kill)
    assert run.process.wait(600) == 0, run.text()
    assert hashes_of(fleet) == fleet.calm


def test_the_supernode(fleet):
    device = fleet.devices["a"]

    def kill():
        for node in processes_below(device.process.pid, "flower-supernode"):
            os.kill(node, signal.SIGKILL)

    run = disturbed(fleet, kill)
    assert run.process.wait(600) == 0, run.text()
    assert hashes_of(fleet) == fleet.calm
    assert device.process.poll() is None


def test_the_whole_device(fleet):
    device = fleet.devices["b"]

    def kill():
        tree = psutil.Process(device.process.pid)
        for process in [tree, *tree.children(recursive=True)]:
            process.kill()

    run = disturbed(fleet, kill)
    device.process.wait(30)
    fleet.devices["b"] = fleet.device("b")
    assert run.process.wait(600) == 0, run.text()
    assert hashes_of(fleet) == fleet.calm


def test_the_server(fleet):
    """With all its processes; it is started again, and the run resumed."""

    def kill():
        tree = psutil.Process(fleet.server.process.pid)
        for process in [tree, *tree.children(recursive=True)]:
            process.kill()

    run = disturbed(fleet, kill)
    run.process.wait(120)
    fleet.server.process.wait(30)
    fleet.server = fleet.serve()
    directory = fleet.run_directory()
    again = fleet.fedbnn(
        *("deploy", "run", "--control", fleet.control),
        *("-c", f"resume={directory.path}"),
        timeout=600,
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert fleet.run_directory().path == directory.path
    assert hashes_of(fleet) == fleet.calm

"""Simulations on a Ray cluster of two nodes, and beside a stray one.

Ray listens on all addresses, so everything runs in a network namespace of its own,
which has nothing but loopback.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from fedbnn_core.flower.processes import end_marked_processes
from fedbnn_core.runs.directory import RunDirectory
from tests.deploy.site import FEDBNN, QUICK, ROOT

pytestmark = pytest.mark.deploy
MARKER = "FEDBNN_TEST_RAY"
ADDRESS = "127.0.0.1:6379"


@pytest.fixture
def namespace():
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and ip, for a network namespace")
    name = f"fbray{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        environment = os.environ | {
            MARKER: folder,
            "RAY_TMPDIR": folder,
            "PYTHONPATH": str(ROOT),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        environment.pop("RAY_ADDRESS", None)
        yield ["ip", "netns", "exec", name], environment
        end_marked_processes(MARKER, folder)
    subprocess.run(["ip", "netns", "del", name], check=True)


def ray(inside, environment, *arguments):
    done = subprocess.run(
        [*inside, "ray", "start", "--num-cpus", "1", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def parents_of_actors(folder):
    """Return the raylets of this test whose children are simulated clients."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and b"ClientAppActor" in (entry / "cmdline").read_bytes()
            ):
                variables = (entry / "environ").read_bytes().split(b"\0")
                if f"{MARKER}={folder}".encode() in variables:
                    stat = (entry / "stat").read_text()
                    found.add(int(stat.rsplit(")", 1)[1].split()[1]))
        except OSError:
            continue
    return found


def raylets(folder):
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "comm").read_text() == "raylet\n":
                variables = (entry / "environ").read_bytes().split(b"\0")
                if f"{MARKER}={folder}".encode() in variables:
                    found.add(int(entry.name))
        except OSError:
            continue
    return found


def simulate(inside, environment, output):
    """Run a simulation; return what it said and the raylets that trained for it."""
    pairs = [("-c", f"{k}={v}") for k, v in QUICK.items()]
    process = subprocess.Popen(
        [
            *(*inside, *FEDBNN, "run", "--clients", "4", "-c", f"output-dir={output}"),
            *(part for pair in pairs for part in pair),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    parents = set()
    done = threading.Event()

    def watch():
        while not done.is_set():
            parents.update(parents_of_actors(environment[MARKER]))
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output_text, _ = process.communicate(timeout=600)
    done.set()
    watcher.join()
    assert process.returncode == 0, output_text
    return output_text, parents


def test_a_simulation_uses_both_nodes_of_a_cluster(namespace, tmp_path):
    inside, environment = namespace
    ray(inside, environment, "--head", "--port=6379", "--include-dashboard=false")
    ray(inside, environment, f"--address={ADDRESS}")
    nodes = raylets(environment[MARKER])
    assert len(nodes) == 2
    _, parents = simulate(
        inside, environment | {"RAY_ADDRESS": ADDRESS}, tmp_path / "r"
    )
    assert parents == nodes
    (folder,) = (tmp_path / "r").iterdir()
    lines = RunDirectory(folder).read_metrics()
    assert [line.clients for line in lines] == [[0, 1, 2, 3]] * 2
    # Raylets survive the run: the cluster is the operator's.
    assert raylets(environment[MARKER]) == nodes


def test_a_stray_cluster_is_never_joined(namespace, tmp_path):
    inside, environment = namespace
    ray(inside, environment, "--head", "--port=6379", "--include-dashboard=false")
    stray = raylets(environment[MARKER])
    assert len(stray) == 1
    _, parents = simulate(inside, environment, tmp_path / "r")
    assert parents
    assert not parents & stray
    assert raylets(environment[MARKER]) == stray

"""The images, and every service of the compose files started as it stands.

Builds for some minutes. FEDBNN_TEST_IMAGES may name a folder that keeps base and
images between runs.
"""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedbnn_core.data import load_dataset
from fedbnn_core.runs.directory import RunDirectory
from tests.deploy.images import Images, require_tools
from tests.deploy.site import ROOT, wait_until
from tests.deploy.stack import Network, Stack

pytestmark = pytest.mark.deploy

# Small runs; the files' own command is the one that is started.
QUICK = ["-c", "train-limit=400", "-c", "test-limit=200", "-c", "local-epochs=1"]


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    require_tools()
    kept = os.environ.get("FEDBNN_TEST_IMAGES")
    store = Path(kept) if kept else tmp_path_factory.mktemp("images")
    made = Images(store)
    made.make_base()
    for target in ("server", "client"):
        made.build(target)
    yield made
    made.close()
    if not kept:
        shutil.rmtree(store)


@pytest.fixture
def stack(images, tmp_path):
    # Namespace names are global and short; overlay wants a path without colons.
    network = Network(f"fb{os.getpid()}", "10.213.77")
    made = Stack(tmp_path, images, network)
    yield made
    made.close()
    network.close()


@pytest.mark.parametrize("target", ["server", "client"])
def test_images_are_slim_and_their_user_is_not_root(images, target):
    root = images.root_of(f"fedbnn-{target}")
    for tool in ("usr/bin/gcc", "usr/bin/make", "opt/fedbnn/bin/pip", "opt/uv", "src"):
        assert not (root / tool).exists(), tool
    assert (root / "opt/fedbnn/bin/fedbnn").exists()
    (native,) = root.glob(
        "opt/fedbnn/lib/python3*/site-packages/fedbnn_core/packed/*.so"
    )
    assert native.stat().st_size > 0
    # Without compiled files every message would compile torch anew.
    assert list(root.glob("opt/fedbnn/lib/python3*/site-packages/torch/__pycache__/*"))
    user = images.buildah(
        *("inspect", "--type", "image", "--format", "{{.OCIv1.Config.User}}"),
        f"localhost/fedbnn-{target}",
    )
    assert user == "app"
    assert not list(root.glob("opt/fedbnn/lib/python3*/site-packages/nvidia"))


def test_compose_up_makes_keys_starts_a_fleet_and_trains(stack):
    content = stack.load(ROOT / "compose.yaml", ROUNDS="2")
    stack.up("credentials", "superlink", "device-0", "device-1")
    # The trainer's command, and settings that make it short.
    trainer = content["services"]["trainer"]
    stack.files["trainer"][1]["command"] = [*trainer["command"], *QUICK]
    stack.up("trainer")
    assert set(stack.processes) == set(content["services"])
    assert stack.processes["trainer"].wait(900) == 0, stack.log("trainer")
    assert "2 of 2 devices stored the model" in stack.log("trainer")
    (folder,) = (stack.volume("runs", "fedbnn-server", "/runs")).iterdir()
    lines = RunDirectory(folder).read_metrics()
    assert [line.clients for line in lines] == [[0, 1], [0, 1]]
    fleet = stack.volume("fleet", "fedbnn-server", "/fleet")
    assert (fleet / "ca.key").stat().st_mode & 0o777 == 0o600
    assert (fleet / "ca.key").stat().st_uid == 49999
    # A device's volumes hold its own key, nobody else's.
    bundles = [
        stack.volume(f"credentials-{i}", "", "").joinpath("bundle").read_text()
        for i in (0, 1)
    ]
    assert '"device-0"' in bundles[0]
    assert '"device-1"' not in bundles[0]
    # Devices can reach 9092 and nothing else of the server.
    probe = (
        "import socket,sys\n"
        "for port in (9092, 8000):\n"
        "    try:\n"
        "        socket.create_connection(('superlink', port), 3)\n"
        "        print(port, 'open')\n"
        "    except OSError: print(port, 'closed')\n"
    )
    answer = stack.execute("device-0", ["python3", "-c", probe])
    assert answer.stdout.split("\n")[:2] == ["9092 open", "8000 closed"]


def write_photos(folder, start):
    dataset = load_dataset("fmnist-mini")
    for label, name in ((1, dataset.class_names[1]), (8, dataset.class_names[8])):
        found = np.flatnonzero(dataset.y_train == label)[start : start + 30]
        (folder / name).mkdir(parents=True)
        for index in found:
            Image.fromarray(dataset.x_train[index, 0]).save(
                folder / name / f"{index}.png"
            )
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, 1000, 1000)
    return folder


def add_operator(stack, settings):
    """Add a service "run" beside the server, which submits a run of four rounds."""
    content, superlink, prefix = stack.files["superlink"]
    pairs = [("-c", setting) for setting in ["num-server-rounds=4", *settings]]
    command = ["fedbnn", "deploy", "run", *(part for pair in pairs for part in pair)]
    service = superlink | {
        "command": command,
        "network_mode": "service:superlink",
        "depends_on": {},
    }
    stack.files["run"] = (content, service, prefix)


def test_hosts_with_own_addresses_train_and_one_is_cut_off(stack, tmp_path):
    """The server file and two client files, each host in its own namespace."""
    stack.load(ROOT / "docker/server.yaml", FEDBNN_HOST="superlink")
    stack.up("credentials", "superlink")
    stack.wait_for_health("superlink")
    for name in ("red", "blue"):
        added = stack.execute(
            "superlink", ["fedbnn", "fleet", "add", name, "--bundle", "-"]
        )
        assert added.returncode == 0, added.stderr
        bundle = tmp_path / f"{name}.bundle"
        bundle.touch(mode=0o600)  # by the guide's umask
        bundle.write_text(added.stdout)
        os.chown(bundle, 1000, 1000)
        photos = write_photos(tmp_path / f"{name}-photos", 40 * len(name))
        stack.load(
            ROOT / "docker/client.yaml",
            prefix=f"{name}-",
            BUNDLE=str(bundle),
            DATA=str(photos),
        )
        # Hosts find the server by name, as with DNS.
        stack.up(f"{name}-device")
    for name in ("red", "blue"):
        stack.wait_for_health(f"{name}-device")
    assert len(set(stack.network.hosts.values())) == 3
    before = stack.network.bytes_of("red-device")
    add_operator(stack, ["round-timeout-s=60", "test-limit=200"])
    stack.start("run")
    wait_until(lambda: "round 1/4" in stack.log("run"), 400, lambda: stack.log("run"))
    stack.network.cut("blue-device")
    wait_until(lambda: "round 2/4" in stack.log("run"), 400, lambda: stack.log("run"))
    stack.network.cut("blue-device", off=False)
    assert stack.processes["run"].wait(900) == 0, stack.log("run")
    folders = stack.volume("runs", "fedbnn-server", "/runs")
    (folder,) = folders.iterdir()
    lines = RunDirectory(folder).read_metrics()
    rounds = [line.clients for line in lines]
    assert rounds[0] == [0, 1]
    assert [0] in rounds
    assert len(rounds) == 4
    down = stack.network.bytes_of("red-device")[0] - before[0]
    # Four broadcasts crossed this link.
    assert down > 4 * lines[0].bytes_down / 2
    # It is back in the fleet with the identity it had, and takes part again.
    wait_until(
        lambda: re.search(
            r"blue.*online",
            stack.execute("superlink", ["fedbnn", "deploy", "status"]).stdout,
        ),
        180,
        lambda: stack.log("blue-device"),
    )
    stack.start("run")
    assert stack.processes["run"].wait(900) == 0, stack.log("run")
    (again,) = set(folders.iterdir()) - {folder}
    assert RunDirectory(again).read_metrics()[-1].clients == [0, 1]

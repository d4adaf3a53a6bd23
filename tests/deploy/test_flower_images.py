"""The compose file on Flower's own images.

Its commands run as they stand, by Flower's programs of this environment instead of
those of the images: host names become loopback, ports and folders those of the test.
"""

import os
import re
import tomllib

import pytest
import yaml

from fedbnn_core.flower.processes import end_marked_processes
from tests.deploy.site import (
    FEDBNN,
    MARKER,
    QUICK,
    ROOT,
    Service,
    free_port,
    wait_until,
)
from tests.deploy.stack import interpolate

PROGRAMS = {
    "flwr/superlink": "flower-superlink",
    "flwr/supernode": "flower-supernode",
    "fedbnn-superexec": "flower-superexec",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def services(**variables):
    text = (ROOT / "docker" / "flower.yaml").read_text()
    return yaml.safe_load(interpolate(text, variables))["services"]


def test_all_of_flower_is_the_version_that_devices_join_with():
    pin = next(
        text.removeprefix("flwr==")
        for text in PROJECT["project"]["optional-dependencies"]["device"]
        if text.startswith("flwr==")
    )
    images = [entry["image"] for entry in services().values()]
    assert {i.partition(":")[2] for i in images if i.startswith("flwr/")} == {pin}
    (build,) = [e["build"] for e in services().values() if "build" in e]
    assert build["args"]["FLOWER"] == pin
    dockerfile = (ROOT / "docker" / "Dockerfile.superexec").read_text()
    assert (
        dict(re.findall(r"^ARG (\w+)=(.*)$", dockerfile, re.MULTILINE))
        == (build["args"])
    )


def test_nothing_is_published_and_nothing_has_rights():
    for entry in services().values():
        assert "ports" not in entry
        assert entry.get("network_mode") != "host"
        assert entry["cap_drop"] == ["ALL"]
        assert entry["image"].partition(":")[0] in PROGRAMS


@pytest.mark.deploy
def test_the_services_train_and_the_devices_get_the_model(tmp_path):
    marker = f"{MARKER}_FLOWER"
    environment = os.environ | {
        marker: str(tmp_path),
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    addresses = {
        "superlink:8000": free_port(),
        "superlink:9092": free_port(),
        "supernode-0:9094": free_port(),
        "supernode-1:9094": free_port(),
    }

    def local(name, word):
        """Give a service's argument this machine's address or folder."""
        own = re.fullmatch(r"--port=(\d+)", word)
        if own:
            return f"--port={addresses[f'{name}:{own[1]}']}"
        word = word.replace("--host=0.0.0.0", "--host=127.0.0.1")
        word = word.replace("0.0.0.0:", f"{name}:")
        for address, port in addresses.items():
            word = word.replace(address, f"127.0.0.1:{port}")
        return word.replace("/app/", f"{tmp_path}/{name[-1]}/")

    def command(name):
        entry = services(ROUNDS="2")[name]
        program = PROGRAMS[entry["image"].partition(":")[0]]
        start = FEDBNN if entry.get("entrypoint") == ["fedbnn"] else [program]
        return [*start, *(local(name, word) for word in entry["command"])]

    started = {}
    try:
        for name in services():
            if name != "trainer":
                log = tmp_path / f"{name}.log"
                started[name] = Service(command(name), log, environment, tmp_path)
        for name in ("supernode-0", "supernode-1"):
            started[name].wait_for("SuperNode ID")
        quick = [f"--config={key}={value}" for key, value in QUICK.items()]
        log = tmp_path / "trainer.log"
        trainer = Service([*command("trainer"), *quick], log, environment, tmp_path)
        wait_until(lambda: trainer.process.poll() is not None, 400, trainer.text)
        assert trainer.process.returncode == 0, trainer.text()
        assert "2 of 2 devices stored the model" in trainer.text()
        assert len(list(tmp_path.glob("*/models/model.fbnn"))) == 2
    finally:
        end_marked_processes(marker, str(tmp_path))

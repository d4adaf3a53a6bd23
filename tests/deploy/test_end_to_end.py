"""A real SuperLink and real SuperNodes, TLS and node authentication, against Ray."""

import json
import subprocess

import pytest

from fedbnn_core.runs.directory import RunDirectory
from tests.deploy.site import FEDBNN, QUICK

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "bits",
    [
        {},
        pytest.param({"uplink-bits": 1, "downlink-bits": 8}, marks=pytest.mark.deploy),
    ],
)
def test_a_fleet_trains_the_bits_of_a_simulation_and_gets_the_model(
    site, tmp_path, bits
):
    """2 rounds on the embedded data; every device ends with the packed model."""
    pairs = [("-c", f"{k}={v}") for k, v in (QUICK | bits).items()]
    simulation = subprocess.Popen(
        [
            *(*FEDBNN, "run", "--clients", "2", "-c", f"output-dir={tmp_path}/sim"),
            *(part for pair in pairs for part in pair),
        ],
        env=site.environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    site.init("camera", "robot")
    site.serve()
    devices = [site.device(name) for name in ("camera", "robot")]
    for device in devices:
        device.wait_for("Connected")
    run = site.run(**bits)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "round 2/2" in run.stdout
    assert "2 of 2 devices stored the model" in run.stdout
    output, _ = simulation.communicate(timeout=900)
    assert simulation.returncode == 0, output

    deployed = site.run_directory()
    (folder,) = (tmp_path / "sim").iterdir()
    simulated = RunDirectory(folder)
    assert [line.clients for line in deployed.read_metrics()] == [[0, 1], [0, 1]]
    columns = ("val_accuracy", "val_loss", "train_loss", "examples", "bytes_up")
    for column in (*columns, "bytes_down", "bits_up", "bits_down"):
        assert json.dumps(
            [line.to_json()[column] for line in deployed.read_metrics()]
        ) == (json.dumps([line.to_json()[column] for line in simulated.read_metrics()]))
    one, two = (run.read_json("summary.json") for run in (deployed, simulated))
    assert one["final_sha256"] == two["final_sha256"]
    assert one["best_sha256"] == two["best_sha256"]

    packed = (deployed.path / "model.fbnn").read_bytes()
    for name in ("camera", "robot"):
        assert (tmp_path / name / "models" / "model.fbnn").read_bytes() == packed
    assert (deployed.path / "report.html").stat().st_size > 10_000

    status = site.fedbnn("deploy", "status", "--control", site.control)
    assert status.returncode == 0, status.stderr
    assert status.stdout.count("online") == 2
    assert "finished:completed" in status.stdout
    accuracy = 100 * deployed.read_metrics()[-1].val_accuracy
    assert f"Round 2 of 2, validation accuracy {accuracy:.2f} %" in status.stdout
    assert all(device.end() == 0 for device in devices)

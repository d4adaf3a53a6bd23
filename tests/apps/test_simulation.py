"""The whole product: real simulated federations through Flower."""

import json
import os
import shutil
import subprocess

import pytest
from safetensors.numpy import load_file

from fedbnn_core.flower.processes import end_marked_processes
from tests.apps.conftest import BIN, private_environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (BIN / "flwr").is_file(), reason="Flower is not installed beside Python"
    ),
]


def accuracy_columns(run):
    return [line.scores for line in run.directory.read_metrics()]


def test_a_run_completes_and_prints_its_result_last(first):
    assert first.returncode == 0, first.output
    summary = first.directory.read_json("summary.json")
    tail = first.output[first.output.rindex("Result") :]
    assert f"{100 * summary['test_accuracy']:.2f} %" in tail
    assert f"{100 * summary['val_accuracy']:.2f} %" in tail
    assert str(first.directory.path) in tail
    assert "round 2/2" in first.output


def test_nothing_is_left_behind(first):
    assert first.leftovers == []


def test_metrics_have_one_line_a_round_with_every_column(first):
    lines = first.directory.read_metrics()
    assert [line.round for line in lines] == [1, 2]
    for line in lines:
        for name in ("val_accuracy", "val_accuracy_weights", "val_accuracy_rotated"):
            assert 0.0 <= line.scores[name] <= 1.0
        assert len(line.layers) == 3  # all convolutions but the first
        for figures in line.layers.values():
            assert set(figures) == {"alpha", "beta", "lambda", "cos_phi"}
            assert all(0.0 <= value <= 1.0 for value in figures.values())
        assert len(line.clients) == 2
        assert line.examples == 500  # 2 of 4 clients hold half of 1,000 images
        # 392,180 float32 numbers and counters each way, and R1, R2 on the way up.
        assert 2 * 1.55e6 < line.bytes_down < 2 * 1.60e6
        extra = line.bytes_up - line.bytes_down
        assert 2 * 4 * 4070 < extra < 2 * (4 * 4070 + 2048)
        assert set(line.seconds) == {"train", "aggregate", "evaluate"}
        assert line.rejected == []


def test_best_and_final_models_are_plain_safetensors(first):
    summary = first.directory.read_json("summary.json")
    best = load_file(first.directory.path / "best.safetensors")
    final = load_file(first.directory.path / "final.safetensors")
    assert set(best) == set(final)
    assert best["convs.3.weight"].shape == (256, 128, 3, 3)
    assert summary["best_round"] in (1, 2)
    config = first.directory.read_json("config.json")
    assert config["config"]["num-server-rounds"] == 2
    assert config["config"]["seed"] == 1


def test_same_seed_gives_the_same_bits_with_one_actor(first, small_run):
    # A client that takes all processors leaves room for one actor.
    again = small_run(cpus_per_client=os.cpu_count())
    one, two = (run.directory.read_json("summary.json") for run in (first, again))
    assert json.dumps(accuracy_columns(first)) == json.dumps(accuracy_columns(again))
    assert one["best_sha256"] == two["best_sha256"]
    assert one["final_sha256"] == two["final_sha256"]


def test_bare_flwr_run_from_any_folder_without_network(tmp_path):
    """Two clients by default; no package is fetched; the log says what to do."""
    root = BIN.parent.parent
    if not (root / "pyproject.toml").is_file():
        pytest.skip("needs the source tree that the environment was made from")
    with private_environment() as (environment, temporary):
        output = bare_flwr_run(root, tmp_path, environment, temporary)
    assert "2 clients are connected" in output
    assert "num-supernodes=100" in output
    assert "No additional application dependencies needed installation" in output
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "summary.json").read_text())["clients"] == 2


def bare_flwr_run(root, tmp_path, environment, temporary):
    environment |= {
        "FLWR_HOME": str(temporary / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": "38217",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_TMPDIR": str(temporary),
        "UV_OFFLINE": "1",
        "UV_NO_CACHE": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    app = tmp_path / "fedbnn"
    app.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(root / name, app)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    settings = f'num-server-rounds=1 local-epochs=1 output-dir="{tmp_path}/runs"'
    try:
        done = subprocess.run(
            [str(BIN / "flwr"), "run", str(app), "--stream", "-c", settings],
            cwd=elsewhere,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
    finally:
        end_marked_processes("FLWR_HOME", str(temporary / "flwr"))
    return done.stdout + done.stderr

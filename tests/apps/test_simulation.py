"""The whole product: real simulated federations through Flower."""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedbnn_core.flower.processes import end_marked_processes
from tests.apps.conftest import (
    BIN,
    private_environment,
    processes_of,
    run_command,
)

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


def test_a_failed_run_exits_non_zero_and_says_why(small_run, tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (80, 8, 8, 1), dtype=np.uint8)
    np.savez(tmp_path / "tiny.npz", x_train=images, y_train=np.arange(80) % 2)
    run = small_run(dataset=f"npz:{tmp_path}/tiny.npz")
    assert run.returncode == 1
    last = run.output.strip().splitlines()[-1]
    assert last.startswith("error: the run did not complete: cnn4 halves its input")
    assert last.endswith("enlarge the images or choose a resnet")
    assert "Traceback" not in run.output
    assert run.leftovers == []


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("learning_rate", 0.1, "unknown config key 'learning-rate'"),
        ("data_dir", "/nowhere", "/nowhere"),
        ("train_limit", 2, "would hold none; use fewer clients"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(
    key, value, message, tmp_path
):
    started = time.monotonic()
    dataset = {"dataset": "cifar10"} if key == "data_dir" else {}
    done = subprocess.run(
        run_command(tmp_path / "runs", **{key: value}, **dataset),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "Starting local SuperLink" not in done.stdout
    assert not (tmp_path / "runs").exists()
    assert time.monotonic() - started < 30


def test_sigterm_stops_everything_as_ctrl_c_does(tmp_path):
    with private_environment() as (environment, temporary):
        process = subprocess.Popen(
            run_command(tmp_path / "runs", num_server_rounds=1000),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            for line in process.stdout:
                if re.search(r"round +1/", line):
                    break
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
            left = [*processes_of(temporary), *temporary.iterdir()]
        finally:
            process.kill()
            for folder in temporary.iterdir():
                end_marked_processes("FEDBNN_RUN_HOME", str(folder))
        assert process.returncode == 130, output
        assert left == []
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "metrics.jsonl").read_text().endswith("\n")


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

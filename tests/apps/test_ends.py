"""How a run ends that cannot go on, is refused or is stopped: real federations."""

import re
import signal
import subprocess
import time

import numpy as np
import pytest

from fedbnn_core.flower.processes import end_marked_processes
from tests.apps.conftest import BIN, private_environment, processes_of, run_command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (BIN / "flwr").is_file(), reason="Flower is not installed beside Python"
    ),
]


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

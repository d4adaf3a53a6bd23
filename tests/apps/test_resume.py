"""A real `fedbnn run`, its server killed with SIGKILL, and `fedbnn resume`."""

import os
import signal
import subprocess
import time

import pytest

from fedbnn_core.launch.processes import end_marked_processes
from fedbnn_core.run_directory import RunDirectory
from tests.apps.conftest import BIN, private_environment, run_command


def server_process(directory):
    """Return the id of the process that holds the run's lock."""
    return int((directory / "run.lock").read_text())


def wait_for(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_bits(first, tmp_path):
    with private_environment() as (environment, temporary):
        with subprocess.Popen(
            run_command(tmp_path),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as command:
            wait_for(lambda: list(tmp_path.glob("*/checkpoints/round-000001.json")))
            (directory,) = tmp_path.iterdir()
            os.kill(server_process(directory), signal.SIGKILL)
            # Flower takes a minute to notice; the command is not what is tested.
            command.send_signal(signal.SIGINT)
            wait_for(lambda: command.poll() is not None)
        assert not (directory / "summary.json").exists()
        done = subprocess.run(
            [BIN / "fedbnn", "resume", str(directory)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for folder in temporary.iterdir():
            end_marked_processes("FEDBNN_RUN_HOME", str(folder))
    assert "Resuming after round" in done.stdout
    wanted = first.directory.read_json("summary.json")
    got = RunDirectory(directory).read_json("summary.json")
    for key in ("best_sha256", "final_sha256", "test_accuracy", "rounds"):
        assert got[key] == wanted[key]
    rounds = [line["round"] for line in RunDirectory(directory).read_metrics()]
    assert rounds == [1, 2]

    # A complete run is shown, not trained again.
    again = subprocess.run(
        [BIN / "fedbnn", "resume", str(directory)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert again.returncode == 0
    assert "nothing to resume" in again.stdout


def test_resume_refuses_what_would_change_the_result(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.write_json("config.json", {"config": {}, "num_partitions": 4})
    done = subprocess.run(
        [BIN / "fedbnn", "resume", str(tmp_path), "-c", "lr=1.0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "a resumed run cannot change lr" in " ".join(done.stderr.split())


def test_resume_of_no_run_is_told(tmp_path):
    done = subprocess.run(
        [BIN / "fedbnn", "resume", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "is no run directory" in " ".join(done.stderr.split())

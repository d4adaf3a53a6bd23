"""A real `fedbnn run`, its server killed with SIGKILL, and `fedbnn resume`."""

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fedbnn_core.flower.processes import end_marked_processes, marked_processes
from fedbnn_core.runs.directory import RunDirectory
from tests.apps.conftest import BIN, private_environment, run_command


def server_process(directory):
    """Return the id of the process that holds the run's lock."""
    return int((directory / "run.lock").read_text())


def wait_for(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def resume(directory, *options, environment=None):
    """Run `fedbnn resume` to its end."""
    return subprocess.run(
        [BIN / "fedbnn", "resume", str(directory), *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )


def assert_same_bits(directory, undisturbed):
    """Compare the outcome with that of a run that nobody disturbed."""
    got = RunDirectory(directory).read_json("summary.json")
    wanted = undisturbed.directory.read_json("summary.json")
    for key in ("best_sha256", "final_sha256", "test_accuracy", "rounds"):
        assert got[key] == wanted[key]
    rounds = [line.round for line in RunDirectory(directory).read_metrics()]
    assert rounds == list(range(1, wanted["rounds"] + 1))


VICTIMS = {
    "server": lambda command, lines: [],
    "superlink": lambda command, lines: matching(lines, "flower-superlink"),
    "client": lambda command, lines: matching(lines, "ray::ClientAppActor"),
    "launcher": lambda command, lines: [command.pid],
    "raylet": lambda command, lines: matching(lines, "raylet/raylet"),
    "all": lambda command, lines: [command.pid, *lines],
}


def matching(lines, text):
    return [process for process, line in lines.items() if text in line]


def run_processes(folder):
    """Return the command lines of a run's processes by their id."""
    marked = {
        process
        for home in folder.iterdir()
        for process in marked_processes("FEDBNN_RUN_HOME", str(home))
    }
    lines = {}
    for process in marked:
        with suppress(OSError):
            content = Path(f"/proc/{process}/cmdline").read_bytes()
            lines[process] = content.replace(b"\0", b" ").decode(errors="replace")
    return lines


@pytest.mark.slow
@pytest.mark.parametrize(
    "victim",
    [
        pytest.param(victim, marks=() if victim == "server" else pytest.mark.deploy)
        for victim in VICTIMS
    ],
)
def test_killed_run_resumes_to_the_same_bits(first, tmp_path, victim):
    with private_environment() as (environment, temporary):
        with subprocess.Popen(
            run_command(tmp_path),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as command:
            wait_for(lambda: list(tmp_path.glob("*/checkpoints/round-000001.json")))
            (directory,) = tmp_path.iterdir()
            victims = VICTIMS[victim](command, run_processes(temporary))
            if victim == "server":
                victims = [server_process(directory)]
            assert victims
            for process in victims:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            # Flower takes a minute to notice; the command is not what is tested.
            command.send_signal(signal.SIGINT)
            wait_for(lambda: command.poll() is not None)
        assert not (directory / "summary.json").exists()
        done = resume(directory, environment=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        for folder in temporary.iterdir():
            end_marked_processes("FEDBNN_RUN_HOME", str(folder))
    assert "Resuming after round" in done.stdout
    assert_same_bits(directory, first)

    # A complete run is shown, not trained again.
    again = resume(directory)
    assert again.returncode == 0
    assert "nothing to resume" in again.stdout


@contextmanager
def small_disk(path):
    """Mount a disk of 64 MB there."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)]
    if (
        not shutil.which("mount")
        or subprocess.run(mount, stderr=subprocess.DEVNULL).returncode
    ):
        pytest.skip("mounts a small disk, for which it must be root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path):
    """Write until the disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


@pytest.mark.deploy
def test_full_disk_stops_cleanly_and_damaged_checkpoint_is_passed_over(first, tmp_path):
    """Both at once: the disk fills in round 2, and checkpoint 1 has lost its end."""
    with small_disk(tmp_path / "disk") as disk, private_environment() as (env, _):
        with subprocess.Popen(
            run_command(disk / "runs"),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as command:
            pattern = "runs/*/checkpoints/round-000001.json"
            wait_for(lambda: list(disk.glob(pattern)) or command.poll() is not None)
            fill(disk / "junk")
            output, _ = command.communicate(timeout=120)
        told = " ".join(output.split())
        assert command.returncode == 1, output
        assert "No space left on device; free some space" in told
        assert "fedbnn resume" in told
        assert "Traceback" not in output

        (directory,) = (disk / "runs").iterdir()
        assert not (directory / "summary.json").exists()
        (disk / "junk").unlink()
        newest = json.loads(next(disk.glob(pattern)).read_text())
        weights = directory / "checkpoints" / newest["files"]["weights"]["name"]
        weights.write_bytes(weights.read_bytes()[:-1])
        done = resume(directory, environment=env)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{weights.name} of round-000001.json is damaged" in done.stdout
        assert "Resuming after round 0" in done.stdout
        assert_same_bits(directory, first)


def test_resume_refuses_what_would_change_the_result(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.write_json("config.json", {"config": {}, "num_partitions": 4})
    done = resume(tmp_path, "-c", "lr=1.0")
    assert done.returncode == 1
    assert "a resumed run cannot change lr" in " ".join(done.stderr.split())


def test_resume_of_no_run_is_told(tmp_path):
    done = resume(tmp_path)
    assert done.returncode == 1
    assert "is no run directory" in " ".join(done.stderr.split())

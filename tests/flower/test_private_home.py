"""What a killed launcher leaves behind is ended by the next start, nothing else."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedbnn_core.flower import private_home as module
from fedbnn_core.flower.private_home import MARKER, end_leftovers, private_home
from fedbnn_core.flower.processes import marked_processes

LAUNCHER = """
import subprocess, time
from fedbnn_core.flower.private_home import private_home
with private_home() as (home, environment):
    subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True)
    print(home, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_temporary_folder", lambda: str(tmp_path))
    return tmp_path


def start_launcher(folder):
    code = (
        "from fedbnn_core.flower import private_home as module\n"
        f"module._temporary_folder = lambda: {str(folder)!r}\n{LAUNCHER}"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )
    return launcher, Path(launcher.stdout.readline().strip())


def is_alive(process_id):
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_killed_launchers_run_is_ended_and_a_living_ones_is_not(temporary_folder):
    killed, dead_home = start_launcher(temporary_folder)
    living, live_home = start_launcher(temporary_folder)
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        left = marked_processes(MARKER, str(dead_home))
        assert left
        assert end_leftovers() == 1
        assert not dead_home.exists()
        deadline = time.monotonic() + 10
        while any(map(is_alive, left)) and time.monotonic() < deadline:
            time.sleep(0.05)  # a zombie until its new parent collects it
        assert not marked_processes(MARKER, str(dead_home))
        assert live_home.is_dir()
        assert marked_processes(MARKER, str(live_home))
    finally:
        killed.kill()
        living.terminate()
        living.wait()
        end_leftovers()
    assert not live_home.exists()


def test_own_home_is_not_left_over():
    with private_home() as (home, environment):
        assert environment["FLWR_HOME"] == str(home / "flwr")
        assert end_leftovers() == 0
        assert home.is_dir()
    assert not home.exists()


def test_folders_that_are_no_homes_stay(temporary_folder):
    other = temporary_folder / "fedbnn-other"
    other.mkdir()
    assert end_leftovers() == 0
    assert other.is_dir()

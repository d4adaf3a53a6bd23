"""What is found before Flower starts."""

import os
import shutil

import pytest

from fedbnn_core.cli import preflight
from fedbnn_core.cli.preflight import (
    check_checkpoints,
    check_machine,
    check_packages,
    check_space,
)
from fedbnn_core.config import RunConfig
from fedbnn_core.errors import ConfigError, RunError
from fedbnn_core.runs.directory import RunDirectory
from fedbnn_core.server.checkpoint import Checkpoint, CheckpointFolder


def config(**keys):
    return RunConfig.from_mapping(
        {key.replace("_", "-"): value for key, value in keys.items()}, complete=False
    )


@pytest.mark.parametrize(
    ("cpus", "gpus", "named"),
    [
        (0, -1, "--cpus-per-client must be above 0"),
        ((os.cpu_count() or 1) + 1, -1, "--cpus-per-client"),
        (1, 1, "--gpus-per-client"),
    ],
)
def test_impossible_resources_are_refused(cpus, gpus, named, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=named):
        check_machine(config(), cpus_per_client=cpus, gpus_per_client=gpus)


def test_possible_resources_pass(monkeypatch):
    check_machine(config(), cpus_per_client=0.5, gpus_per_client=-1)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    check_machine(config(), cpus_per_client=1000, gpus_per_client=4)


def test_device_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="device = 'cuda:99' cannot train"):
        check_machine(config(device="cuda:99"), cpus_per_client=1, gpus_per_client=-1)


@pytest.mark.parametrize(
    ("keys", "advice"),
    [
        ({"privacy": "local"}, "fedbnn\\[privacy\\]"),
        ({"tracker": "wandb"}, "pip install 'wandb'"),
    ],
)
def test_missing_packages_are_named(keys, advice, monkeypatch):
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    check_packages(config())
    with pytest.raises(ConfigError, match=advice):
        check_packages(config(**keys))


def test_full_disk_is_found(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=10**6))
    with pytest.raises(RunError, match=r"only 1\.0 MB are free"):
        check_space(config(output_dir=str(tmp_path / "new" / "runs")), 10)
    # CNN4's state has 1.6 MB; a run keeps a dozen of them.
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=10**8))
    check_space(config(output_dir=str(tmp_path / "new" / "runs")), 10)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=3)
    for number in (1, 2):
        folder.save(Checkpoint(number, {}, {}, {}, 0, {}))
    return RunDirectory.open(tmp_path)


def test_sound_checkpoints_pass(run):
    assert check_checkpoints(run) == []


def test_damaged_checkpoint_is_told_and_stays_for_the_server_to_tell(run):
    newest = run.path / "checkpoints" / "round-000002.json"
    newest.write_text("{")
    assert len(check_checkpoints(run)) == 1
    assert newest.is_file()


def test_only_damaged_checkpoints_are_refused(run):
    for path in (run.path / "checkpoints").glob("round-*.json"):
        path.write_text("{")
    with pytest.raises(RunError, match="all 2 checkpoints"):
        check_checkpoints(run)


def test_run_that_is_being_written_is_refused(run):
    owner = RunDirectory.open(run.path)
    owner.lock()
    with pytest.raises(RunError, match=f"process {os.getpid()} is still writing"):
        check_checkpoints(run)
    owner.release()
    check_checkpoints(run)

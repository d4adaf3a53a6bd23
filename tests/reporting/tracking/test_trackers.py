import importlib.util
import logging

import pytest

from fedbnn_core.errors import ConfigError
from fedbnn_core.reporting.tracking import RunTrackers


def test_event_files_appear_with_the_first_round(tmp_path, description, lines, summary):
    pytest.importorskip("tensorboard")
    trackers = RunTrackers(tmp_path, description)
    assert not (tmp_path / "tensorboard").exists()
    trackers.round_finished(lines[0])
    trackers.run_finished(summary)
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))


def test_a_tracker_that_fails_warns_once_and_never_stops_the_run(
    tmp_path, description, lines, summary, caplog
):
    pytest.importorskip("tensorboard")
    # A file where the folder should be.
    (tmp_path / "tensorboard").write_text("in the way")
    trackers = RunTrackers(tmp_path, description)
    with caplog.at_level(logging.WARNING):
        for line in lines:
            trackers.round_finished(line)
        trackers.run_finished(summary)
    assert len(caplog.records) == 1
    assert "tensorboard gets no more metrics" in caplog.text


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_that_is_not_installed_is_refused_at_once(
    tmp_path, description, name
):
    if importlib.util.find_spec(name):
        pytest.skip(f"{name} is installed here")
    description["config"]["tracker"] = name
    with pytest.raises(ConfigError, match=f"pip install {name}"):
        RunTrackers(tmp_path, description)


def test_mlflow_takes_every_round(tmp_path, description, lines, summary, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.chdir(tmp_path)
    description["config"]["tracker"] = "mlflow"
    trackers = RunTrackers(tmp_path, description)
    for line in lines:
        trackers.round_finished(line)
    trackers.run_finished(summary)
    run_id = (tmp_path / "mlflow-run-id.txt").read_text().strip()
    history = mlflow.MlflowClient().get_metric_history(run_id, "schedule/lr")
    assert [(m.step, m.value) for m in history] == [(1, 0.1), (2, 0.05)]


def test_wandb_takes_the_run_offline(
    tmp_path, description, lines, summary, monkeypatch
):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    description["config"]["tracker"] = "wandb"
    trackers = RunTrackers(tmp_path, description)
    for line in lines:
        trackers.round_finished(line)
    trackers.run_finished(summary)
    (record,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert b"alpha_beta/convs.1" in record.read_bytes()

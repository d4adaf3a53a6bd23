"""What a run leaves behind, a bare one without any command around it too."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedbnn_core.data import split_test
from fedbnn_core.networks.complexity import model_sizes
from fedbnn_core.packed import PackedModel
from fedbnn_core.runs.metrics import Summary
from fedbnn_core.runs.model import load_run_model, pack_run
from fedbnn_core.server.evaluation import RunEvaluation
from tests.tiny_run import TinyFederation, tiny_config, write_data


def finished(tmp_path, **settings):
    data = write_data(tmp_path / "d.npz", train=64, test=40)
    config = tiny_config(data, tmp_path / "runs", num_server_rounds=2, **settings)
    federation = TinyFederation(config)
    return federation.run, federation.to_end()


def test_the_packed_model_scores_what_the_summary_says(tmp_path):
    run, summary = finished(tmp_path)
    content = (run.directory.path / "model.fbnn").read_bytes()
    assert content == pack_run(run.directory.path)
    dataset = run.context.dataset
    _, test = split_test(dataset, run.config.data_seed)
    labels = PackedModel(content).predict(dataset.x_test[test])
    share = np.mean(labels == dataset.y_test[test])
    assert share == pytest.approx(summary.test_accuracy)
    model = load_run_model(run.directory.path)
    assert summary.float32_bytes == model_sizes(model).float32_bytes
    assert isinstance(model, torch.nn.Module)


def test_the_test_score_is_that_of_the_file_and_not_of_torch(tmp_path, monkeypatch):
    """With another network in the file the test score is the other one's."""
    original = RunEvaluation.pack

    def pack_upside_down(self, best, *, class_names):
        state = dict(best.state)
        head = next(n for n in reversed(state) if n.endswith("weight"))
        bias = head.replace("weight", "bias")
        # Every image is of class 0 then.
        state[head] = np.zeros_like(state[head])
        state[bias] = -np.arange(len(state[bias]), dtype=np.float32)
        return original(self, replace(best, state=state), class_names=class_names)

    monkeypatch.setattr(RunEvaluation, "pack", pack_upside_down)
    run, summary = finished(tmp_path)
    dataset = run.context.dataset
    _, test = split_test(dataset, run.config.data_seed)
    assert summary.test_accuracy == pytest.approx(np.mean(dataset.y_test[test] == 0))
    assert np.sum(np.array(summary.test_confusion)[:, 1:]) == 0


def test_the_summary_is_read_back(tmp_path):
    run, summary = finished(tmp_path)
    assert run.directory.read_summary() == summary
    assert run.directory.is_complete()
    stored = json.loads((run.directory.path / "summary.json").read_text())
    assert Summary.from_json(stored).to_json() == stored


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method": "fedavg"}, "fedavg trains a float network"),
        ({"activation": "per-sample"}, "every sample"),
    ],
    ids=["float", "per-sample"],
)
def test_a_model_without_packed_form_has_no_file_and_the_log_says_why(
    tmp_path, caplog, settings, reason
):
    with caplog.at_level(logging.INFO):
        run, _ = finished(tmp_path, **settings)
    assert not (run.directory.path / "model.fbnn").exists()
    said = [r.getMessage() for r in caplog.records if "no packed" in r.getMessage()]
    assert len(said) == 1
    assert reason in said[0]

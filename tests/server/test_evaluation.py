"""Which half scores what, and which round is best."""

import numpy as np
import pytest
import torch

from fedbnn_core.data import split_test
from fedbnn_core.methods import create_method
from fedbnn_core.runs.dataset import load_run_dataset
from fedbnn_core.server.evaluation import BestModel, RunEvaluation
from tests.tiny_run import tiny_config, write_data


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Return a dataset, the evaluation over it and states that always say a class."""
    folder = tmp_path_factory.mktemp("data")
    config = tiny_config(write_data(folder / "d.npz", train=9, test=31), folder)
    dataset = load_run_dataset(config)
    method = create_method(config, dataset.input_shape, dataset.num_classes)
    evaluation = RunEvaluation(
        method, dataset, seed=config.data_seed, device=torch.device("cpu")
    )
    constant = []
    for label in range(3):
        state = dict(method.template.broadcast)
        head = [name for name in state if name.endswith("bias")][-1]
        state[head] = np.full_like(state[head], -1e6)
        state[head][label] = 1e6
        constant.append(state)
    halves = [dataset.y_test[half] for half in split_test(dataset, config.data_seed)]
    return evaluation, constant, halves


def share(labels, label):
    return float(np.mean(np.asarray(labels) == label))


def test_candidates_are_scored_on_the_validation_half(parts):
    evaluation, constant, (validation, _) = parts
    candidates = {"first": constant[0], "second": constant[1]}
    columns, best = evaluation.score_candidates(candidates, 4, BestModel())
    assert columns["val_accuracy"] == pytest.approx(share(validation, 0))
    assert columns["val_accuracy_second"] == pytest.approx(share(validation, 1))
    assert set(columns) == {
        "val_accuracy",
        "val_loss",
        "val_accuracy_second",
        "val_loss_second",
    }
    # Only the first is the product, however good the others are.
    assert (best.round, best.accuracy) == (4, columns["val_accuracy"])
    assert best.state.keys() == constant[0].keys()


def test_best_changes_only_for_a_better_one(parts):
    evaluation, constant, (validation, _) = parts
    accuracies = [share(validation, label) for label in range(3)]
    low, high = int(np.argmin(accuracies)), int(np.argmax(accuracies))
    assert accuracies[low] < accuracies[high]
    best = BestModel()
    for number, label in enumerate((low, high, high, low), start=1):
        _, best = evaluation.score_candidates({"w": constant[label]}, number, best)
    assert (best.round, best.accuracy) == (2, pytest.approx(accuracies[high]))


def test_report_is_of_the_test_half(parts):
    evaluation, constant, (validation, test) = parts
    assert share(validation, 2) != share(test, 2)
    summary = evaluation.report(BestModel(7, 0.25, 1.0, constant[2]), None)
    assert summary["test_accuracy"] == pytest.approx(share(test, 2))
    assert (summary["best_round"], summary["val_accuracy"]) == (7, 0.25)
    confusion = np.array(summary["test_confusion"])
    np.testing.assert_array_equal(confusion[:, 2], np.bincount(test, minlength=3))
    assert confusion.sum() == len(test)


def test_scoring_with_torch_is_told_once_with_the_reason(tmp_path, caplog):
    config = tiny_config(
        write_data(tmp_path / "d.npz", train=9, test=31),
        tmp_path,
        activation="per-sample",
    )
    dataset = load_run_dataset(config)
    method = create_method(config, dataset.input_shape, dataset.num_classes)
    evaluation = RunEvaluation(
        method, dataset, seed=config.data_seed, device=torch.device("cpu")
    )
    state = method.template.broadcast
    for number in (1, 2):
        evaluation.score_candidates({"w": state}, number, BestModel())
    (record,) = caplog.records
    assert "scored with PyTorch, not packed: " in record.getMessage()
    assert "every sample" in record.getMessage()


def test_the_servers_statistics_replace_the_clients(tmp_path, monkeypatch):
    """16 validation images by at most 5: no batch is left with a single one."""
    monkeypatch.setattr("fedbnn_core.server.evaluation._STATISTICS_BATCH", 5)
    data = write_data(tmp_path / "d.npz", train=9, test=32)
    config = tiny_config(data, tmp_path, method="fedbnn", served_statistics="server")
    dataset = load_run_dataset(config)
    method = create_method(config, dataset.input_shape, dataset.num_classes)
    evaluation = RunEvaluation(
        method, dataset, seed=config.data_seed, device=torch.device("cpu")
    )
    state = dict(method.template.broadcast)
    _, best = evaluation.score_candidates({"mixed": state}, 1, BestModel())
    changed = {
        name
        for name, array in best.state.items()
        if not np.array_equal(array, state[name])
    }
    statistics = {name for name in state if "running" in name}
    assert statistics
    assert changed == statistics
    assert all(np.isfinite(best.state[name]).all() for name in statistics)

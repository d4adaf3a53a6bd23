import json
import math

import pytest

from fedbnn_core.errors import RunError
from fedbnn_core.reporting.report import report_payload, rounds_payload
from fedbnn_core.runs.metrics import RoundMetrics
from tests.reporting.report.runs import invented_lines, write_run


def read(lines):
    return [RoundMetrics.from_json(line) for line in lines]


def test_rounds_are_stored_by_column():
    lines = invented_lines(rounds=3, layers=2, clients=5, planned=3)
    lines[1].pop("val_accuracy")
    lines[1]["train_loss"] = math.nan
    lines[2]["layers"]["stages.0.blocks.1.conv"]["cos_phi"] = None
    lines[0]["rejected"] = [{"client": 4, "reason": "late"}]
    rounds = rounds_payload(read(lines))
    assert rounds["round"] == [1, 2, 3]
    accuracy = rounds["columns"]["val_accuracy"]
    assert accuracy[1] is None
    assert accuracy[0] == pytest.approx(lines[0]["val_accuracy"], rel=1e-5)
    assert rounds["columns"]["train_loss"][1] is None
    assert rounds["columns"]["seconds_aggregate"] == [0.3, 0.3, 0.3]
    assert rounds["layer_names"] == ["stages.0.blocks.0.conv", "stages.0.blocks.1.conv"]
    assert rounds["layers"]["cos_phi"][1][2] is None
    for number, name in enumerate(rounds["layer_names"]):
        for r in range(3):
            logged = lines[r]["layers"][name]["alpha"]
            assert rounds["layers"]["alpha"][number][r] == pytest.approx(
                logged, abs=5e-6
            )
    # A round that was repeated counts its failed attempt too.
    lines[2]["failed_attempts"] = [
        {"rejected": [{"client": 2, "reason": "NaN"}], "missing": [0]}
    ]
    lines[2]["missing"] = [1]
    rounds = rounds_payload(read(lines))
    assert [1, 4, "late"] in rounds["rejected"]
    assert [3, 2, "NaN"] in rounds["rejected"]
    assert rounds["missing"] == [[], [], [0, 1]]
    json.dumps(rounds, allow_nan=False)


def test_traffic_has_four_columns():
    lines = invented_lines(rounds=2, layers=1, clients=5, planned=2)
    keys = ("bytes_up", "bytes_up_nominal", "bytes_down", "bytes_down_nominal")
    for number, line in enumerate(lines):
        line |= {key: 100 * place + number for place, key in enumerate(keys)}
    columns = rounds_payload(read(lines))["columns"]
    assert [columns[key] for key in keys] == [
        [0, 1],
        [100, 101],
        [200, 201],
        [300, 301],
    ]


def test_a_run_without_rounds_has_empty_columns():
    assert rounds_payload([])["round"] == []


def test_runs_are_named_by_what_sets_them_apart(tmp_path):
    paths = [
        write_run(tmp_path / "a", rounds=2, lr=0.1),
        write_run(tmp_path / "b", rounds=2, lr=0.05),
        write_run(tmp_path / "c", rounds=2, lr=0.05),
        write_run(tmp_path / "d", rounds=2, lr=0.1, method="fedavg"),
    ]
    labels = [run["label"] for run in report_payload(paths)["runs"]]
    assert labels == [
        "FedBNN, lr 0.1",
        "FedBNN, lr 0.05",
        "FedBNN, lr 0.05 #2",
        "FedAvg (float), lr 0.1",
    ]


def test_method_is_named_as_the_run_stored_it(tmp_path):
    path = write_run(tmp_path / "a", rounds=2)
    description = json.loads((path / "config.json").read_text())
    description |= {"method_title": "Other", "binary": False}
    (path / "config.json").write_text(json.dumps(description))
    run = report_payload([path])["runs"][0]
    assert (run["method_name"], run["binary"]) == ("Other (float)", False)


def test_changed_keys_are_those_that_differ_from_the_defaults(tmp_path):
    run = report_payload([write_run(tmp_path / "a", rounds=2, seed=0, lr=0.25)])
    assert set(run["runs"][0]["changed"]) == {"num-server-rounds", "lr"}


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="no run directory"):
        report_payload([tmp_path])
    with pytest.raises(RunError, match="at least one"):
        report_payload([])


def test_no_path_of_the_machine_is_told(tmp_path):
    path = write_run(tmp_path / "a", rounds=2)
    assert str(tmp_path) not in json.dumps(report_payload([path]))
    assert "/home/somebody" not in json.dumps(report_payload([path]))


def test_a_dataset_that_is_missing_is_said_and_sizes_remain(tmp_path):
    path = write_run(tmp_path / "a", rounds=2, clients=7, dataset="npz:/nowhere.npz")
    run = report_payload([path])["runs"][0]
    assert run["partition"]["counts"] is None
    assert len(run["partition"]["sizes"]) == 7
    assert "was not at hand" in run["notes"][0]


def test_speed_is_shown_where_it_was_measured(tmp_path):
    path = write_run(tmp_path / "a", rounds=2)
    assert report_payload([path])["runs"][0]["benchmark"] is None
    rows = [
        {"threads": 2, "batch": 1, "packed_ms": 0.1},
        {"threads": 1, "batch": 1, "packed_ms": 0.3, "model": "resnet18"},
        {"threads": 1, "batch": 1, "packed_ms": 0.2},
    ]
    (path / "bench.json").write_text(json.dumps(rows))
    assert report_payload([path])["runs"][0]["benchmark"]["packed_ms"] == 0.2

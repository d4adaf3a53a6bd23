"""Figures of several runs against numbers worked out by hand."""

import csv
import io
import json

import pytest

from fedbnn_core.cli.compare import plot_runs
from fedbnn_core.errors import RunError
from fedbnn_core.reporting.comparison import (
    as_csv,
    bytes_to,
    common_target,
    different_data,
    gaps,
    read_run,
)
from tests.runs.run_folders import write_run


@pytest.fixture
def runs(tmp_path):
    fedavg = write_run(tmp_path, "a", {"method": "fedavg"}, accuracy=0.9, ptb=0.5)
    fedbnn = write_run(
        tmp_path,
        "b",
        {"method": "fedbnn", "float-first": False},
        accuracy=0.8,
        rounds=3,
    )
    return [read_run(path) for path in (fedavg, fedbnn)]


def test_traffic_and_time_are_sums_over_rounds(runs):
    fedavg, fedbnn = runs
    assert (fedavg.bytes_up, fedavg.bytes_up_nominal) == (3000, 2700)
    assert (fedbnn.bytes_down, fedbnn.bytes_down_nominal) == (24_000, 18_000)
    assert fedbnn.total_bytes == (5000, 15_000, 30_000)
    assert fedbnn.val_accuracy == pytest.approx((0.1, 0.2, 0.3))
    assert fedavg.seconds_per_round == pytest.approx(2.0)
    assert (fedavg.ptb_test_accuracy, fedbnn.ptb_test_accuracy) == (0.5, None)


def test_the_traffic_until_an_accuracy_was_reached(runs):
    fedavg, fedbnn = runs
    # Two rounds reach 0.2, three reach 0.3; round r sends 5000 r bytes.
    assert common_target(runs) == pytest.approx(0.2)
    assert bytes_to(fedavg, 0.1) == 5000
    assert bytes_to(fedbnn, 0.15) == 15_000
    assert bytes_to(fedbnn, 0.25) == 30_000
    assert bytes_to(fedavg, 0.25) is None
    assert (fedbnn.bits_up, fedbnn.bits_down) == (1.25, 8.2)


def test_cost_is_that_of_the_method_s_network(runs):
    """The paper's counts for CNN4 on Fashion-MNIST."""
    fedavg, fedbnn = runs
    assert fedavg.flops == pytest.approx(2.02107e7, rel=1e-5)
    assert fedbnn.flops == pytest.approx(3.48460e5, rel=1e-5)
    assert fedavg.memory_mb == pytest.approx(1.563520)
    assert fedbnn.memory_mb == pytest.approx(0.048860)
    assert fedbnn.memory_measured_mb == pytest.approx(0.06)  # as in summary.json
    assert (fedavg.binary, fedbnn.binary) == (False, True)
    # What is left in float is the head, 2 x 256 x 10.
    assert (fedbnn.float_flops, fedavg.one_bit_ops) == (5120, 0)


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        ("cnn4", (1, 28, 28), 1.6291),
        ("cnn4", (3, 32, 32), 1.6127),
        ("resnet10", (3, 32, 32), 19.617064),
    ],
)
def test_memory_of_fedmud_by_the_paper_s_rule(tmp_path, model, shape, expected):
    """CNN4 with all factors, other models without."""
    config = {"method": "fedmud", "model": model}
    path = write_run(tmp_path, "a", config, accuracy=0.9)
    stored = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(stored | {"input_shape": shape}))
    assert read_run(path).memory_mb == pytest.approx(expected, abs=6e-5)


def test_gap_and_its_noise(runs):
    """400 images, 90 % and 80 %: sqrt(.09/400 + .16/400) = 2.5 points."""
    (own, own_noise), (gap, noise) = gaps(runs)
    assert (own, own_noise) == (0.0, 0.0)
    assert gap == pytest.approx(10.0)
    assert noise == pytest.approx(5.0)


def test_csv_has_every_figure_of_every_run(runs):
    records = list(csv.DictReader(io.StringIO(as_csv(runs))))
    assert [record["method"] for record in records] == ["fedavg", "fedbnn"]
    assert float(records[1]["test_accuracy"]) == 0.8
    assert records[1]["ptb_test_accuracy"] == ""


def test_plot_is_a_picture(runs, tmp_path):
    plot_runs(runs, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_what_differs_in_the_data_is_told(runs, tmp_path):
    assert different_data(runs) == []
    config = {"method": "fedavg", "dataset": "svhn", "partition": "dirichlet"}
    other = read_run(write_run(tmp_path, "c", config, accuracy=0.7))
    assert different_data([*runs, other]) == ["dataset", "partition"]


@pytest.mark.parametrize("with_best", [True, False])
def test_a_stopped_run_is_refused(tmp_path, with_best):
    path = write_run(tmp_path, "a", {"method": "fedavg"}, accuracy=0.9)
    summary = json.loads((path / "summary.json").read_text())
    summary |= {"status": "stopped", "reason": "no clients"}
    if not with_best:
        del summary["test_accuracy"], summary["best_round"]
    (path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(RunError, match="stopped after round 2: no clients"):
        read_run(path)


def test_an_unfinished_run_is_refused(tmp_path):
    path = write_run(tmp_path, "a", {"method": "fedavg"}, accuracy=0.9)
    (path / "summary.json").unlink()
    with pytest.raises(RunError, match="not ended"):
        read_run(path)

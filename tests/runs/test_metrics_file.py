"""The metrics file: written, cut back, read whole and while it grows."""

import json
import logging

import pytest

from fedbnn_core.runs.directory import RunDirectory
from fedbnn_core.runs.metrics import RoundMetrics
from fedbnn_core.runs.metrics_file import METRICS, MetricsReader, MetricsWriter


def line(number):
    return json.dumps({"round": number, "num_rounds": 9}) + "\n"


def rounds(read):
    return [metrics.round for metrics in read]


def test_nan_becomes_null(tmp_path):
    writer = MetricsWriter(tmp_path / METRICS)
    writer.append(
        RoundMetrics(1, train_loss=float("nan"), layers={"a": {"x": float("inf")}})
    )
    stored = json.loads((tmp_path / METRICS).read_text(), parse_constant=pytest.fail)
    assert stored["train_loss"] is None
    assert stored["layers"] == {"a": {"x": None}}


def test_metrics_are_cut_back_to_a_position(tmp_path):
    path = tmp_path / METRICS
    writer = MetricsWriter(path)
    for number in range(3):
        writer.append(RoundMetrics(number))
    position = writer.position()
    writer.append(RoundMetrics(3))
    with path.open("a") as file:
        file.write('{"round": 4, "los')  # the process died here
    resumed = MetricsWriter(path)
    assert resumed.rewind(position, 2)
    assert rounds(RunDirectory(tmp_path).read_metrics()) == [0, 1, 2]
    assert resumed.position() == position


def test_changed_metrics_are_noticed_and_kept(tmp_path):
    path = tmp_path / METRICS
    writer = MetricsWriter(path)
    writer.append(RoundMetrics(1))
    changed = '{"round": 1, "loss": 0}\n{"note": 1}\n{"round": 2}\n{"round": 3}\n{"cut'
    path.write_text(changed)
    # The checkpoint is that of round 2: round 3 will be done again.
    assert not MetricsWriter(path).rewind(writer.position(), 2)
    assert path.read_text() == '{"round": 1, "loss": 0}\n{"note": 1}\n{"round": 2}\n'
    assert rounds(RunDirectory(tmp_path).read_metrics()) == [1, 2]


DAMAGES = ["{oops\n", "\0\0\0\n", '{"note": 1}\n', "[]\n", "\n", '{"round": "3"}\n']


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_line_in_the_middle_is_reported_by_all_readers(
    tmp_path, caplog, damage
):
    path = tmp_path / METRICS
    path.write_text(line(1) + damage + line(3))
    assert rounds(RunDirectory(tmp_path).read_metrics()) == [1, 3]
    reader = MetricsReader(path)
    reader.poll()
    assert rounds(reader.rounds) == [1, 3]
    (told,) = reader.damages
    assert told.startswith(f"line 2 of {path} is damaged")
    assert [r.levelno for r in caplog.records] == [logging.WARNING] * 2
    assert not reader.poll()
    assert len(reader.damages) == 1


@pytest.mark.parametrize("damage", [*DAMAGES, '{"round": 2, "num_ro'])
def test_a_damaged_last_line_of_a_live_run_is_not_there_yet(tmp_path, caplog, damage):
    path = tmp_path / METRICS
    path.write_text(line(1) + damage)
    reader = MetricsReader(path)
    reader.poll()
    assert rounds(reader.rounds) == [1]
    assert rounds(RunDirectory(tmp_path).read_metrics()) == [1]
    assert not reader.damages
    assert not caplog.records
    # Another one follows it: then it was damaged for good.
    if damage.endswith("\n"):
        with path.open("a") as file:
            file.write(line(3))
        assert reader.poll()
        assert rounds(reader.rounds) == [1, 3]
        assert len(reader.damages) == 1


def test_a_damaged_last_line_of_a_complete_run_is_reported(tmp_path, caplog):
    (tmp_path / METRICS).write_text(line(1) + '{"round": 2, "num_ro')
    (tmp_path / "summary.json").write_text("{}")
    assert rounds(RunDirectory(tmp_path).read_metrics()) == [1]
    assert "line 2 of" in caplog.text

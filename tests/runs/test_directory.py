"""The run's folder: atomic files, metrics that can be cut back, one writer."""

import json
import subprocess
import sys

import numpy as np
import pytest

from fedbnn_core.errors import RunError
from fedbnn_core.runs.directory import RunDirectory, require_output_folder


def test_new_directories_never_collide(tmp_path):
    paths = {RunDirectory.create(tmp_path, "name").path for _ in range(5)}
    assert len(paths) == 5
    assert all(path.name.split("-", 2)[2].startswith("name") for path in paths)


def test_unusable_output_folder_is_named(tmp_path):
    require_output_folder(tmp_path / "new" / "runs")
    assert list((tmp_path / "new" / "runs").iterdir()) == []
    (tmp_path / "file").write_text("not a folder")
    for use in (require_output_folder, lambda path: RunDirectory.create(path, "name")):
        with pytest.raises(RunError, match=r"in .*/file/runs: .*set output-dir to"):
            use(tmp_path / "file" / "runs")


def test_progress_that_cannot_be_written_stops_nothing(tmp_path):
    directory = RunDirectory(tmp_path)
    (tmp_path / "progress.json").mkdir()  # No file can take its place.
    directory.write_progress(round_number=1, clients=4, done=3, rejected=0)
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]
    (tmp_path / "progress.json").rmdir()
    directory.write_progress(round_number=1, clients=4, done=4, rejected=0)
    assert json.loads((tmp_path / "progress.json").read_text())["done"] == 4


def test_only_a_run_can_be_opened(tmp_path):
    with pytest.raises(RunError, match=r"no config\.json"):
        RunDirectory.open(tmp_path)
    RunDirectory(tmp_path).write_json("config.json", {})
    assert RunDirectory.open(tmp_path).path == tmp_path


def test_figures_that_json_cannot_hold_become_null(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.append_metrics({"loss": float("nan"), "deep": [{"x": float("inf")}]})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "loss": None,
        "deep": [{"x": None}],
    }


def test_states_come_back_with_shape_and_dtype(tmp_path):
    state = {
        "scalar": np.array(1.5, np.float32),
        "transposed": np.arange(6, dtype=np.int64).reshape(2, 3).T,
    }
    directory = RunDirectory(tmp_path)
    directory.write_state("s.safetensors", state, {"round": "3"})
    loaded = directory.read_state("s.safetensors")
    for name, array in state.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].shape == array.shape
        assert loaded[name].dtype == array.dtype


def test_damaged_state_is_told(tmp_path):
    (tmp_path / "s.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    with pytest.raises(RunError, match="no valid safetensors file"):
        RunDirectory(tmp_path).read_state("s.safetensors")


def test_metrics_are_cut_back_to_a_position(tmp_path):
    directory = RunDirectory(tmp_path)
    for number in range(3):
        directory.append_metrics({"round": number})
    position = directory.metrics_position()
    directory.append_metrics({"round": 3})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "los')  # the process died here
    resumed = RunDirectory(tmp_path)
    assert resumed.rewind_metrics(position, 2)
    assert [line["round"] for line in resumed.read_metrics()] == [0, 1, 2]
    assert resumed.metrics_position() == position


def test_changed_metrics_are_noticed_and_kept(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.append_metrics({"round": 1})
    position = directory.metrics_position()
    changed = '{"round": 1, "loss": 0}\n{"note": 1}\n{"round": 2}\n{"round": 3}\n{"cut'
    (tmp_path / "metrics.jsonl").write_text(changed)
    resumed = RunDirectory(tmp_path)
    # The checkpoint is that of round 2: round 3 will be done again.
    assert not resumed.rewind_metrics(position, 2)
    assert resumed.read_metrics() == [
        {"round": 1, "loss": 0},
        {"note": 1},
        {"round": 2},
    ]


def test_second_writer_is_refused_until_the_first_ends(tmp_path):
    program = (
        "import sys, pathlib; from fedbnn_core.runs.directory import RunDirectory\n"
        "RunDirectory(pathlib.Path(sys.argv[1])).lock(); print('locked')"
    )

    def other():
        return subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)],
            capture_output=True,
            text=True,
        )

    directory = RunDirectory(tmp_path)
    directory.lock()
    refused = other()
    assert "is still writing to" in refused.stderr
    directory.release()
    assert other().stdout.strip() == "locked"

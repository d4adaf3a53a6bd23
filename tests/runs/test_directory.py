"""The run's folder: atomic files, metrics that can be cut back, one writer."""

import json
import math
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


def test_numbers_that_json_cannot_hold_become_null(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.write_json("x.json", {"loss": math.nan, "deep": [{"x": math.inf}]})
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "loss": None,
        "deep": [{"x": None}],
    }


@pytest.mark.parametrize(
    ("stored", "complete"),
    [(None, False), ({"status": "stopped"}, False), ({"rounds": 3}, True)],
)
def test_a_run_is_complete_when_its_last_round_is_done(tmp_path, stored, complete):
    directory = RunDirectory(tmp_path)
    if stored is not None:
        directory.write_json("summary.json", stored)
    assert directory.is_complete() == complete
    assert (directory.read_summary() is None) == (stored is None)


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

"""Published runs: what is kept of a run, and that the kept ones are what they say."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.data import load_dataset, split_test
from fedbnn_core.errors import DataError, RunError
from fedbnn_core.experiments import collect, load_recipe, plan, publish
from fedbnn_core.packed import PackedModel
from tests.runs.run_folders import write_run

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
PUBLISHED = sorted(path.parent for path in RESULTS.glob("*/*/*/summary.json"))
NAMES = [str(path.relative_to(RESULTS)) for path in PUBLISHED]

RECIPE = """
[config]
dataset = "fmnist-mini"
[paper]
clients = 8
[paper.config]
num-server-rounds = 2
[methods.fedavg]
[methods.fedbnn]
"""


@pytest.fixture
def planned(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE)
    recipe = load_recipe(str(path))
    return plan(recipe, "paper", tmp_path / "runs", rows=["fedbnn"], seeds=[3])[0]


def finish(planned, **more):
    path = write_run(planned.folder, "run", planned.config, accuracy=0.5, clients=8)
    for name, content in more.items():
        (path / name.replace("_", ".")).write_bytes(content)
    return path


def test_a_published_run_has_figures_and_model_and_no_places(planned, tmp_path):
    run = finish(planned, model_fbnn=b"bits", best_safetensors=b"floats")
    path = publish(planned, tmp_path / "results")
    assert path == tmp_path / "results/mine/paper/fedbnn-seed3"
    names = {"config.json", "metrics.jsonl", "model.fbnn", "summary.json"}
    assert {file.name for file in path.iterdir()} == names
    assert (path / "model.fbnn").read_bytes() == b"bits"
    assert (path / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
    for name in ("config.json", "summary.json"):
        assert str(tmp_path) not in (path / name).read_text()
    stored = json.loads((run / "config.json").read_text())["config"]
    kept = json.loads((path / "config.json").read_text())["config"]
    assert stored.items() - kept.items() == {
        (key, stored[key]) for key in ("output-dir", "data-dir", "resume")
    }


def test_tables_read_published_runs_like_any_other(planned, tmp_path):
    finish(planned)
    publish(planned, tmp_path / "results")
    (row,) = collect(planned.recipe, tmp_path / "results")
    assert (row.row, row.scale, row.seeds, row.accuracy) == ("fedbnn", "paper", 1, 50.0)


def test_what_is_published_again_is_replaced(planned, tmp_path):
    first = finish(planned, model_fbnn=b"bits")
    path = publish(planned, tmp_path / "results")
    (first / "model.fbnn").unlink()
    (first / "metrics.jsonl").write_text("")
    assert publish(planned, tmp_path / "results") == path
    assert not (path / "model.fbnn").exists()
    assert (path / "metrics.jsonl").read_text() == ""


def test_a_run_under_way_is_refused(planned, tmp_path):
    (finish(planned) / "summary.json").unlink()
    with pytest.raises(RunError, match=r"fedbnn of mine has not ended.*seed 3.*run it"):
        publish(planned, tmp_path / "results")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("path", PUBLISHED, ids=NAMES)
def test_a_kept_run_is_one_of_its_recipe(path):
    recipe, scale, name = path.relative_to(RESULTS).parts
    row, seed = name.rsplit("-seed", 1)
    (run,) = plan(load_recipe(recipe), scale, RESULTS, rows=[row], seeds=[int(seed)])
    found = run.finished()
    assert found is not None
    assert found.path == path
    rounds = [metrics.round for metrics in found.read_metrics()]
    assert rounds == list(range(1, run.config["num-server-rounds"] + 1))


@pytest.mark.parametrize("path", PUBLISHED, ids=NAMES)
def test_a_kept_model_scores_what_its_run_says(path):
    summary = json.loads((path / "summary.json").read_text())
    if not (path / "model.fbnn").is_file():
        assert summary["one_bit_bytes"] is None, "a 1-bit run has a 1-bit model"
        return
    config = json.loads((path / "config.json").read_text())["config"]
    try:
        dataset = load_dataset(config["dataset"])
    except DataError as error:
        pytest.skip(f"{config['dataset']} is not here: {error}")
    _, test = split_test(dataset, config["data-seed"])
    images = np.asarray(dataset.x_test[test])
    found = PackedModel.load(path / "model.fbnn").predict(images)
    right = int((found == np.asarray(dataset.y_test[test])).sum())
    assert right / len(test) == pytest.approx(summary["test_accuracy"], abs=1e-12)

"""`fedbnn experiment` and `fedbnn compare` on run directories written by hand."""

import csv
import io
import re

import pytest
from typer.testing import CliRunner

from fedbnn_core.cli import app
from fedbnn_core.errors import ConfigError, DataError, RunError
from fedbnn_core.experiments import load_recipe, plan, recipe_names
from fedbnn_core.runs.directory import RunDirectory
from tests.runs.run_folders import write_run

RECIPE = """
[config]
dataset = "fmnist-mini"
[short]
clients = 8
[short.config]
num-server-rounds = 2
[methods.fedavg]
published = { accuracy = 92.24, binarized = 53.42 }
[methods.fedbnn]
[ablations.haar-start]
method = "fedbnn"
config = { rotation-start = "haar" }
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE)
    return path


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def finish_all(recipe, runs):
    for run in plan(load_recipe(str(recipe)), "short", runs):
        write_run(run.folder, run.row.name, run.config, accuracy=0.5, clients=8)


def test_list_names_every_recipe_and_its_rows():
    output = invoke("experiment", "list").output
    for name in recipe_names():
        assert name in output
    assert "fedavg, fedbat, fedmud, fedbnn" in output
    assert "no-alignment, client-mix, haar-start, per-sample" in output


def test_run_starts_nothing_that_is_done(recipe, tmp_path):
    finish_all(recipe, tmp_path / "runs")
    result = invoke("experiment", "run", recipe, "--runs", tmp_path / "runs")
    assert result.exit_code == 0, result.output
    assert "2 runs, 2 of them done." in result.output
    assert "| mine" in result.output
    assert len(list((tmp_path / "runs/mine/short").iterdir())) == 2


@pytest.fixture
def started(monkeypatch):
    """Return the configs with which simulations were started; none of them runs."""
    configs = []
    monkeypatch.setattr(
        "fedbnn_core.cli.run.follow_simulation",
        lambda config, **options: configs.append(config),
    )
    return configs


def interrupt(run, **stored):
    """Write a run that has a checkpoint and no summary."""
    config = run.config | {key.replace("_", "-"): v for key, v in stored.items()}
    path = write_run(run.folder, run.row.name, config, accuracy=0.5, clients=8)
    (path / "summary.json").unlink()
    (path / "checkpoints" / "round-1").mkdir(parents=True)
    return path


def test_run_goes_on_with_what_was_interrupted(recipe, tmp_path, started):
    runs = tmp_path / "runs"
    fedavg, _ = plan(load_recipe(str(recipe)), "short", runs)
    path = interrupt(fedavg, data_dir="/old", quorum=0.25)
    invoke("experiment", "run", recipe, "--runs", runs, "-c", "data-dir=/new")
    resumed, fresh = started
    assert resumed["resume"] == str(path)
    assert fresh.get("resume", "") == ""
    assert fresh["data-dir"] == "/new"
    # The server goes on with the stored config, so the change must be there.
    stored = RunDirectory(path).read_json("config.json")["config"]
    assert (stored["data-dir"], stored["quorum"]) == ("/new", 0.25)
    assert resumed == stored | {"resume": str(path)}


def test_run_with_other_settings_does_not_go_on(recipe, tmp_path, started):
    runs = tmp_path / "runs"
    fedavg, _ = plan(load_recipe(str(recipe)), "short", runs)
    interrupt(fedavg, lr=0.7)
    invoke("experiment", "run", recipe, "--runs", runs, "--method", "fedavg")
    assert [config.get("resume", "") for config in started] == [""]


@pytest.mark.parametrize("error", [RunError, DataError])
def test_failures_are_all_told_at_the_end(recipe, tmp_path, monkeypatch, error):
    def fail(config, **options):
        raise error(f"no luck with {config['method']}")

    monkeypatch.setattr("fedbnn_core.cli.run.follow_simulation", fail)
    result = invoke("experiment", "run", recipe, "--runs", tmp_path / "runs")
    # A run that fails keeps no other from its turn.
    assert "Failed: no luck with fedavg" in result.output
    assert "Failed: no luck with fedbnn" in result.output
    assert isinstance(result.exception, RunError)
    assert "2 of 2 runs failed" in str(result.exception)


def test_table_as_csv_into_a_file(recipe, tmp_path):
    finish_all(recipe, tmp_path / "runs")
    target = tmp_path / "table.csv"
    arguments = ("--runs", tmp_path / "runs", "--format", "csv", "--output", target)
    assert invoke("experiment", "table", recipe, *arguments).exit_code == 0
    records = list(csv.DictReader(io.StringIO(target.read_text())))
    assert [record["row"] for record in records] == ["fedavg", "fedbnn"]
    assert records[0]["paper_accuracy"] == "92.24"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["run"], ConfigError, "experiment list"),
        (["run", "RECIPE", "--seeds", "1,x"], ConfigError, "1,2,3"),
        (["run", "RECIPE", "--scale", "long"], ConfigError, "short"),
        (["run", "RECIPE", "--method", "fedprox"], ConfigError, "fedavg"),
        (["run", "RECIPE", "-c", "seed=3"], ConfigError, "--seeds"),
        (["table", "RECIPE"], RunError, "experiment run"),
        (["table", "RECIPE", "--scale", "long"], ConfigError, "short"),
        (["table", "RECIPE", "--format", "html"], ConfigError, "markdown"),
    ],
)
def test_wrong_use_says_what_to_do(recipe, tmp_path, arguments, error, message):
    given = [recipe if argument == "RECIPE" else argument for argument in arguments]
    result = invoke("experiment", *given, "--runs", tmp_path / "runs")
    assert isinstance(result.exception, error)
    assert message in str(result.exception)


def test_compare_prints_one_table_and_draws_one_plot(tmp_path):
    first = write_run(tmp_path, "a", {"method": "fedavg"}, accuracy=0.9, ptb=0.5)
    second = write_run(tmp_path, "b", {"method": "fedbnn"}, accuracy=0.8)
    plot, figures = tmp_path / "plot.png", tmp_path / "figures.csv"
    result = invoke("compare", first, second, "--plot", plot, "--csv", figures)
    assert result.exit_code == 0, result.output
    for text in ("90.00", "10.00 (5.00)", "is binary", "2.02e+07", "0.0600"):
        assert text in result.output
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert figures.read_text().startswith("name,method,")


def test_compare_tells_bits_and_the_traffic_to_a_target(tmp_path):
    runs = [
        write_run(tmp_path, name, {"method": "fedavg"}, accuracy=0.9, rounds=rounds)
        for name, rounds in (("a", 2), ("b", 4))
    ]
    plot = tmp_path / "plot.png"
    # Round r sends 5000 r bytes and reaches 10 r percent.
    result = invoke("compare", *runs, "--plot", plot)
    assert re.search(r"MB to 20\.00 % +0\.0[12] +0\.0[12]", result.output), (
        result.output
    )
    assert re.search(r"bits / weight up +1\.25 +1\.25", result.output)
    result = invoke("compare", *runs, "--plot", plot, "--target", "35")
    assert re.search(r"MB to 35\.00 % +not reached +0\.05", result.output)


def test_compare_warns_of_other_data_and_of_what_was_not_scored(tmp_path):
    first = write_run(tmp_path, "a", {"method": "fedavg"}, accuracy=0.9)
    other = {"method": "fedbnn", "partition": "dirichlet"}
    second = write_run(tmp_path, "b", other, accuracy=0.8)
    result = invoke("compare", first, second, "--plot", tmp_path / "plot.png")
    assert "the runs differ in partition" in result.output
    assert "not scored" in result.output


@pytest.mark.parametrize("option", ["--plot", "--csv"])
def test_compare_finds_a_missing_folder_before_the_table(tmp_path, option):
    runs = [
        write_run(tmp_path, name, {"method": "fedavg"}, accuracy=0.9) for name in "ab"
    ]
    result = invoke("compare", *runs, option, tmp_path / "no" / "file")
    assert isinstance(result.exception, ConfigError)
    assert "there is no folder" in str(result.exception)
    assert result.output == ""


def test_compare_needs_two_runs(tmp_path):
    run = write_run(tmp_path, "a", {"method": "fedavg"}, accuracy=0.9)
    result = invoke("compare", run, "--plot", tmp_path / "plot.png")
    assert isinstance(result.exception, ConfigError)
    assert "two or more" in str(result.exception)


def test_publish_and_plot_take_what_is_finished(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE)
    finish_all(path, tmp_path / "runs")
    runs, results = ["--runs", tmp_path / "runs"], tmp_path / "results"
    scale = ["--scale", "short"]
    done = invoke("experiment", "publish", path, *scale, *runs, "--to", results)
    assert done.exit_code == 0, done.output
    names = {folder.name for folder in (results / "mine/short").iterdir()}
    assert names == {"fedavg-seed1", "fedbnn-seed1"}
    picture = tmp_path / "curves.png"
    done = invoke(
        "experiment", "plot", path, *scale, "--runs", results, "--output", picture
    )
    assert done.exit_code == 0, done.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    none = invoke("experiment", "plot", path, *scale, "--runs", tmp_path / "empty")
    assert isinstance(none.exception, RunError)
    assert "no finished run of" in str(none.exception)
    nowhere = ["--output", tmp_path / "absent" / "curves.png"]
    lost = invoke("experiment", "plot", path, *scale, "--runs", results, *nowhere)
    assert isinstance(lost.exception, ConfigError)
    assert "there is no folder" in str(lost.exception)
    wrong = invoke("experiment", "publish", path, "--scale", "huge", *runs)
    assert isinstance(wrong.exception, ConfigError)
    assert "scale must be one of short, mid, paper" in str(wrong.exception)

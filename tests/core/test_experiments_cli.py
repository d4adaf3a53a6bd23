"""`fedbnn experiment` and `fedbnn compare` on run directories written by hand."""

import csv
import io

import pytest
from typer.testing import CliRunner

from fedbnn_core.cli import app
from fedbnn_core.errors import ConfigError, RunError
from fedbnn_core.experiments import load_recipe, plan, recipe_names
from tests.core.run_folders import write_run

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
    for text in ("90.00", "10.00 (5.00)", "is binary", "2.02e+07", "0.0625"):
        assert text in result.output
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert figures.read_text().startswith("name,method,")

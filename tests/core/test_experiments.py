"""Recipes, their plan, what counts as done, and the tables."""

import csv
import io
import re
from pathlib import Path

import pytest

from fedbnn_core.config import RunConfig
from fedbnn_core.data.registry import DATASETS
from fedbnn_core.errors import ConfigError
from fedbnn_core.experiments import (
    as_csv,
    as_markdown,
    collect,
    load_recipe,
    plan,
    recipe_names,
)
from tests.core.run_folders import write_run

SPEC = Path(__file__).resolve().parents[3] / "shared" / "spec" / "baselines.md"
PARTITIONS = {"iid": "iid", "noniid1": "dirichlet", "noniid2": "label-fraction"}
# Rounds, local epochs and lr of the paper (baselines.md section 0).
TRAINING = {
    "fmnist-cnn4": (500, 5, 0.1),
    "svhn-cnn4": (500, 10, 0.1),
    "cifar10-resnet10": (1500, 15, 0.1),
    "cifar10-convnext": (1500, 15, 0.01),
    "tiny-imagenet-resnet18": (1500, 15, 0.1),
    "femnist-resnet18": (1500, 15, 0.1),
}


def small_recipe(folder, text=""):
    path = folder / "mine.toml"
    path.write_text(
        """
        title = "Mine"
        [config]
        dataset = "fmnist-mini"
        lr = 0.2
        [short]
        clients = 8
        seeds = [1, 2]
        ablation-seeds = [1, 5]
        [short.config]
        num-server-rounds = 2
        [paper]
        [paper.config]
        num-server-rounds = 50
        [methods.fedavg]
        published = { accuracy = 92.24, binarized = 53.42 }
        [methods.fedmud]
        config = { lr = 0.01 }
        [methods.fedbnn]
        published = { accuracy = 88.46 }
        [ablations.no-alignment]
        method = "fedbnn"
        config = { server-alignment = false }
        """
        + text
    )
    return load_recipe(str(path))


def test_one_recipe_for_each_row_and_partition_of_the_table():
    expected = {f"{row}-{part}" for row in TRAINING for part in PARTITIONS}
    assert set(recipe_names()) == expected


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_train_as_the_paper_does(name):
    recipe = load_recipe(name)
    row, partition = name.rsplit("-", 1)
    rounds, epochs, lr = TRAINING[row]
    for method in ("fedavg", "fedbat", "fedmud", "fedbnn"):
        mapping = recipe.run_config(recipe.row(method), "paper", seed=4)
        config = RunConfig.from_mapping(mapping, complete=False)
        assert config.method == method
        assert config.partition == PARTITIONS[partition]
        assert (config.dirichlet_alpha, config.label_fraction) == (0.3, 0.3)
        assert (config.num_server_rounds, config.local_epochs) == (rounds, epochs)
        assert config.lr == (lr / 10 if method == "fedmud" else lr)
        assert (config.batch_size, config.clients_per_round) == (64, 10)
        assert (config.lr_halve_from, config.lr_halve_every) == (200, 200)
        assert (config.train_limit, config.test_limit) == (0, 0)
        assert config.seed == 4
        assert config.dataset in DATASETS
    assert recipe.scale("paper").clients == 100
    assert len(recipe.scale("short").ablation_seeds) >= 3


def test_width_reduced_rows():
    for row, widths in (
        ("cifar10-resnet10", "10 11"),
        ("tiny-imagenet-resnet18", "9 11"),
    ):
        for part in PARTITIONS:
            recipe = load_recipe(f"{row}-{part}")
            for width in widths.split():
                config = recipe.run_config(
                    recipe.row(f"fedavg-width{width}"), "paper", seed=1
                )
                assert config["method"] == "fedavg"
                assert config["model-width"] == int(width)


@pytest.mark.skipif(not SPEC.is_file(), reason="the specification is not at hand")
def test_published_figures_are_those_of_the_specification():
    text = SPEC.read_text(encoding="utf-8")
    titles = {
        "FMNIST CNN4": "fmnist-cnn4",
        "SVHN CNN4": "svhn-cnn4",
        "CIFAR10 ResNet10": "cifar10-resnet10",
        "CIFAR10 ConvNeXt-T": "cifar10-convnext",
        "Tiny-ImageNet ResNet18": "tiny-imagenet-resnet18",
        "FEMNIST ResNet18": "femnist-resnet18",
    }
    columns = ("fedavg", "fedbat", "fedmud", "fedbnn", "no-alignment", "client-mix")
    for title, name in titles.items():
        line = re.search(rf"^\| {re.escape(title)} \|(.*)\|$", text, re.MULTILINE)
        assert line, title
        for column, cell in zip(columns, line.group(1).split("|"), strict=True):
            halves = [half.split() for half in cell.split("/")]
            for index, part in enumerate(PARTITIONS):
                published = load_recipe(f"{name}-{part}").row(column).published
                assert published.accuracy == float(halves[0][index])
                binarized = float(halves[1][index]) if len(halves) > 1 else None
                assert published.binarized == binarized


def test_row_overrides_scale_overrides_recipe(tmp_path):
    recipe = small_recipe(tmp_path)
    config = recipe.run_config(recipe.row("fedmud"), "short", seed=3)
    assert config == {
        "dataset": "fmnist-mini",
        "lr": 0.01,
        "num-server-rounds": 2,
        "method": "fedmud",
        "seed": 3,
    }
    config = recipe.run_config(recipe.row("no-alignment"), "paper", seed=3)
    assert config["method"] == "fedbnn"
    assert config["server-alignment"] is False
    assert config["num-server-rounds"] == 50


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[methods.fedprox]", "fedprox"),
        ("[methods.fedbat]\nconfig = { lrr = 0.1 }", "lrr"),
        ("[methods.fedbat]\npublishd = {}", "publishd"),
        ("[big]\nclients = 5", "big"),
        ("[methods.fedbat", "mine.toml"),
    ],
)
def test_a_bad_recipe_is_refused_with_its_fault(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        small_recipe(tmp_path, text)


def test_an_unknown_name_lists_the_recipes():
    with pytest.raises(ConfigError, match="fmnist-cnn4-iid"):
        load_recipe("fmnist")


def names(planned):
    return [(run.row.name, run.seed) for run in planned]


def test_plan_runs_all_methods_seed_by_seed(tmp_path):
    recipe = small_recipe(tmp_path)
    assert names(plan(recipe, "short", tmp_path)) == [
        *(("fedavg", 1), ("fedmud", 1), ("fedbnn", 1)),
        *(("fedavg", 2), ("fedmud", 2), ("fedbnn", 2)),
    ]
    assert names(plan(recipe, "short", tmp_path, ablations=True)) == [
        *(("fedbnn", 1), ("no-alignment", 1)),
        *(("fedbnn", 5), ("no-alignment", 5)),
    ]
    # An ablation of another method is compared with that method.
    other = small_recipe(tmp_path, "[ablations.slow]\nmethod = 'fedmud'")
    assert names(plan(other, "short", tmp_path, ablations=True, seeds=[1])) == [
        *(("fedmud", 1), ("fedbnn", 1), ("no-alignment", 1), ("slow", 1)),
    ]
    assert names(plan(recipe, "short", tmp_path, rows=["fedmud"], seeds=[7])) == [
        ("fedmud", 7)
    ]
    with pytest.raises(ConfigError, match="no-alignment"):
        plan(recipe, "short", tmp_path, rows=["fedprox"])
    with pytest.raises(ConfigError, match="paper"):
        plan(recipe, "long", tmp_path)
    with pytest.raises(ConfigError, match="--seeds"):
        plan(recipe, "short", tmp_path, overrides={"seed": 3})


def test_a_run_is_done_if_its_very_config_has_a_result(tmp_path):
    recipe = small_recipe(tmp_path)
    (run,) = plan(recipe, "short", tmp_path, rows=["fedavg"], seeds=[1])
    assert run.finished() is None
    folder = tmp_path / "mine" / "short"

    write_run(folder, "1-other-seed", run.config | {"seed": 2}, accuracy=0.5, clients=8)
    write_run(folder, "2-clients", run.config, accuracy=0.5, clients=9)
    write_run(folder, "3-lr", run.config | {"lr": 0.3}, accuracy=0.5, clients=8)
    assert run.finished() is None

    # Where the data lies and how many threads are used does not matter.
    elsewhere = run.config | {"data-dir": "elsewhere", "client-threads": 2}
    done = write_run(folder, "4-done", elsewhere, accuracy=0.5, clients=8)
    assert run.finished().path == done
    assert run.interrupted() is None

    (done / "summary.json").unlink()
    assert run.finished() is None
    # Without a checkpoint there is nothing to go on from.
    assert run.interrupted() is None
    (done / "checkpoints" / "round-1").mkdir(parents=True)
    assert run.interrupted().path == done


def test_collect_means_and_spreads_over_seeds(tmp_path):
    recipe = small_recipe(tmp_path)
    folder = tmp_path / "mine" / "short"
    for seed, accuracy, ptb in ((1, 0.80, 0.40), (2, 0.84, 0.50)):
        config = recipe.run_config(recipe.row("fedavg"), "short", seed)
        write_run(folder, f"a{seed}", config, accuracy=accuracy, ptb=ptb, clients=8)
    config = recipe.run_config(recipe.row("fedbnn"), "short", 1)
    write_run(folder, "b1", config, accuracy=0.75, clients=8)
    # Fewer rounds than the scale asks for: not a result of this scale.
    write_run(folder, "b2", config | {"num-server-rounds": 1}, accuracy=0.99, clients=8)
    fedavg, fedbnn = collect(recipe, tmp_path)
    assert (fedavg.row, fedavg.scale, fedavg.seeds) == ("fedavg", "short", 2)
    assert fedavg.accuracy == pytest.approx(82.0)
    # Sample deviation of two values: half their distance times sqrt(2).
    assert fedavg.accuracy_spread == pytest.approx(2 * 2**0.5)
    assert fedavg.binarized == pytest.approx(45.0)
    assert (fedavg.paper_accuracy, fedavg.paper_binarized) == (92.24, 53.42)
    # Rounds 1 and 2 send 1000 and 2000 bytes up; they take 1.5 and 2.5 seconds.
    assert fedavg.bytes_up == 1500
    assert fedavg.bytes_down_nominal == 4500
    assert fedavg.seconds_per_round == pytest.approx(2.0)
    assert fedbnn.accuracy == fedbnn.binarized == pytest.approx(75.0)
    assert fedbnn.accuracy_spread is None
    assert fedbnn.paper_binarized == 88.46


def test_tables_say_which_scale_and_hold_both_figures(tmp_path):
    recipe = small_recipe(tmp_path)
    config = recipe.run_config(recipe.row("fedavg"), "short", 1)
    write_run(
        tmp_path / "mine" / "short", "a", config, accuracy=0.8, ptb=0.4, clients=8
    )
    rows = collect(recipe, tmp_path)
    lines = as_markdown(rows).splitlines()
    assert {len(line) for line in lines[:3]} == {len(lines[0])}
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells[:9] == [
        *("mine", "short", "fedavg", "2", "1"),
        *("80.00", "92.24", "40.00", "53.42"),
    ]
    (record,) = csv.DictReader(io.StringIO(as_csv(rows)))
    assert record["scale"] == "short"
    assert float(record["accuracy"]) == 80.0
    assert float(record["paper_accuracy"]) == 92.24
    assert record["accuracy_spread"] == ""

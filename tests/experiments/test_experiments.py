"""Recipes, their plan, what counts as done, and the tables."""

import csv
import io
import json

import pytest

from fedbnn_core.config import RunConfig
from fedbnn_core.data.registry import DATASETS
from fedbnn_core.errors import ConfigError
from fedbnn_core.experiments import (
    Published,
    as_csv,
    as_markdown,
    collect,
    load_recipe,
    plan,
    recipe_names,
)
from tests.runs.run_folders import write_run

PARTITIONS = {"iid": "iid", "noniid1": "dirichlet", "noniid2": "label-fraction"}
# Rounds, local epochs and lr of the paper.
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


# The paper's test accuracies: IID, Non-IID 1, Non-IID 2, and
# behind the stroke after post-training binarization.
PUBLISHED = {
    "fmnist-cnn4": {
        "fedavg": "92.24 91.44 89.28 / 53.42 63.68 54.72",
        "fedbat": "89.12 87.66 85.56 / 14.34 16.98 8.0",
        "fedmud": "89.60 88.60 86.00 / 63.2 66.5 66.08",
        "fedbnn": "88.46 87.76 83.38",
        "no-alignment": "88.54 87.68 82.48",
        "client-mix": "87.88 87.24 80.40",
    },
    "svhn-cnn4": {
        "fedavg": "92.10 90.60 89.34 / 28.01 22.56 16.92",
        "fedbat": "86.01 80.83 75.78 / 50.35 26.69 34.71",
        "fedmud": "86.31 84.38 83.14 / 69.92 50.87 51.19",
        "fedbnn": "86.89 85.63 84.40",
        "no-alignment": "86.77 85.38 84.13",
        "client-mix": "86.25 84.74 80.40",
    },
    "cifar10-resnet10": {
        "fedavg": "90.86 86.28 70.62 / 17.2 11.38 12.74",
        "fedbat": "89.38 72.80 63.70 / 13.62 10.94 10.26",
        "fedmud": "88.74 84.22 67.22 / 15.54 10.78 18.98",
        "fedbnn": "89.95 82.84 73.82",
        "no-alignment": "89.34 82.82 68.54",
        "client-mix": "89.82 82.22 55.62",
        "fedavg-width10": "84.74 81.06 66.16",
        "fedavg-width11": "86.60 81.50 68.78",
    },
    "cifar10-convnext": {
        "fedavg": "65.22 60.20 61.84 / 18.04 21.64 16.56",
        "fedbat": "66.04 64.22 61.88 / 14.90 21.42 16.54",
        "fedmud": "53.92 54.30 38.18 / 40.46 35.44 29.50",
        "fedbnn": "72.08 67.08 63.00",
        "no-alignment": "70.78 61.78 58.50",
        "client-mix": "72.62 66.60 62.70",
    },
    "tiny-imagenet-resnet18": {
        "fedavg": "55.00 52.62 54.54 / .52 .52 .56",
        "fedbat": "27.30 32.12 20.90 / .60 .48 .80",
        "fedmud": "47.20 44.16 46.06 / 16.24 12.80 15.60",
        "fedbnn": "46.54 43.00 45.74",
        "no-alignment": "42.86 40.62 43.90",
        "client-mix": "46.36 42.46 43.84",
        "fedavg-width9": "41.06 37.72 35.66",
        "fedavg-width11": "43.16 40.54 39.24",
    },
    "femnist-resnet18": {
        "fedavg": "80.24 81.12 80.32 / 2.08 1.66 1.62",
        "fedbat": "76.44 74.31 78.41 / .38 2.08 2.40",
        "fedmud": "78.79 80.11 76.68 / 25.74 .76 .80",
        "fedbnn": "79.73 80.31 79.13",
        "no-alignment": "79.10 79.61 80.68",
        "client-mix": "80.56 80.76 76.41",
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures_are_the_paper_s(name):
    for index, part in enumerate(PARTITIONS):
        recipe = load_recipe(f"{name}-{part}")
        # Rows beyond these have no figure in the paper.
        told = {r.name: r.published for r in recipe.rows if r.published != Published()}
        expected = {}
        for row, figures in PUBLISHED[name].items():
            halves = [half.split()[index] for half in figures.split("/")]
            expected[row] = Published(*map(float, halves))
        # Ours has the paper's FedBNN beside it.
        expected["fedbnn-plus"] = expected["fedbnn"]
        assert told == expected


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
        ("[methods.fedbat]\npublished = 92.1", "'published' must be a table"),
        ("[methods.fedbat]\npublished = { accuracy = 'x' }", "'accuracy' must be"),
        ("[methods.fedbat]\nmethod = 3", "'method' must be text"),
        ("[ablations]\nfast = 3", "'fast' must be a table"),
    ],
)
def test_a_bad_recipe_is_refused_with_its_fault(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        small_recipe(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = 'Mine'", r"no table \[methods\.NAME\]"),
        ("methods = 'fedavg'", "'methods' must be a table"),
        ("[methods.fedavg]\n[short]\nclients = 'many'", "'clients' must be a whole"),
        ("[methods.fedavg]\n[short]\nclients = 0", "'clients' must be at least 1"),
        ("[methods.fedavg]\n[short]\nseeds = 3", "'seeds' must be a list"),
        ("[methods.fedavg]\n[short]\nseeds = ['a']", "'seeds' must be whole numbers"),
        ("config = 1\n[methods.fedavg]", "'config' must be a table"),
    ],
)
def test_a_recipe_with_a_wrong_type_is_refused_with_the_key(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_recipe(str(path))


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
    for key, value, remedy in (
        ("seed", 3, "--seeds"),
        ("num-partitions", 4, "number of clients"),
        ("resume", "/x", "goes on by itself"),
    ):
        with pytest.raises(ConfigError, match=remedy):
            plan(recipe, "short", tmp_path, overrides={key: value})


def test_a_run_is_done_if_its_very_config_has_a_result(tmp_path):
    recipe = small_recipe(tmp_path)
    (run,) = plan(recipe, "short", tmp_path, rows=["fedavg"], seeds=[1])
    assert run.finished() is None
    folder = tmp_path / "mine" / "short"

    write_run(folder, "1-other-seed", run.config | {"seed": 2}, accuracy=0.5, clients=8)
    write_run(folder, "2-clients", run.config, accuracy=0.5, clients=9)
    write_run(folder, "3-lr", run.config | {"lr": 0.3}, accuracy=0.5, clients=8)
    assert run.finished() is None

    # Where the data lies and what `fedbnn resume -c` may change does not matter.
    elsewhere = run.config | {"data-dir": "elsewhere", "max-round-retries": 9}
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


def test_a_float_run_that_was_not_binarized_has_no_such_figure(tmp_path):
    recipe = small_recipe(tmp_path)
    config = recipe.run_config(recipe.row("fedavg"), "short", 1)
    write_run(tmp_path / "mine" / "short", "a", config, accuracy=0.8, clients=8)
    (row,) = collect(recipe, tmp_path)
    assert (row.binarized, row.binarized_spread) == (None, None)
    assert row.paper_binarized == 53.42


@pytest.mark.parametrize(
    ("images", "told"), [(10_000, "10000"), (4_000, "4000*"), (None, "")]
)
def test_part_of_a_dataset_is_not_the_paper_s_scale(tmp_path, images, told):
    recipe = small_recipe(tmp_path)
    for scale, clients in (("paper", 100), ("short", 8)):
        config = recipe.run_config(recipe.row("fedavg"), scale, 1)
        folder = tmp_path / "mine" / scale
        path = write_run(folder, "a", config, accuracy=0.8, clients=clients)
        if images is not None:
            stored = json.loads((path / "config.json").read_text())
            stored |= {"train_images": images}
            (path / "config.json").write_text(json.dumps(stored))
    rows = collect(recipe, tmp_path)
    text = as_markdown(rows)
    cells = {
        line.split("|")[2].strip(): line.split("|")[6].strip()
        for line in text.splitlines()[2:4]
    }
    # The short scale says itself that it is not the paper's.
    assert cells == {"paper": told, "short": told.rstrip("*")}
    assert ("not the whole training set" in text) == told.endswith("*")
    records = list(csv.DictReader(io.StringIO(as_csv(rows))))
    assert records[0]["train_images"] == str(images or "")
    assert records[0]["full_train_images"] == "10000"


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
    assert cells[:10] == [
        *("mine", "short", "fedavg", "2", "1", ""),
        *("80.00", "92.24", "40.00", "53.42"),
    ]
    (record,) = csv.DictReader(io.StringIO(as_csv(rows)))
    assert record["scale"] == "short"
    assert float(record["accuracy"]) == 80.0
    assert float(record["paper_accuracy"]) == 92.24
    assert record["accuracy_spread"] == ""

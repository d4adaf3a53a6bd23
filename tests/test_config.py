"""The run config: one place for defaults, and errors that name the choices."""

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from fedbnn_core.config import RunConfig, default_mapping
from fedbnn_core.errors import ConfigError

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def parse(**overrides):
    named = {key.replace("_", "-"): value for key, value in overrides.items()}
    return RunConfig.from_mapping(named, complete=False)


def test_pyproject_lists_exactly_the_fields():
    config = tomllib.loads(PYPROJECT.read_text())["tool"]["flwr"]["app"]["config"]
    assert set(config) == {entry.name.replace("_", "-") for entry in fields(RunConfig)}


def test_defaults_are_those_of_pyproject_and_valid():
    assert RunConfig.from_mapping(default_mapping()).to_mapping() == default_mapping()


def test_every_field_has_a_description():
    source = (PYPROJECT.parent / "fedbnn_core" / "config" / "run_config.py").read_text()
    body = source.split("class RunConfig:")[1].split("def __post_init__")[0]
    lines = [line.strip() for line in body.splitlines() if line.strip()][1:]
    for position, line in enumerate(lines):
        if line.split(":")[0].isidentifier() and ":" in line and '"""' not in line:
            assert lines[position + 1].startswith('"""'), line


@pytest.mark.parametrize(
    "name",
    [
        *("../../evil", "a/b", "/etc", "a\\b", "..", ".hidden", "-c", "a\nb"),
        *("[red]x[/]", "<script>", "a&b", "nul\0", "\x1b[31m", "x" * 101, " x"),
        *("a:b", "a*"),
    ],
)
def test_run_names_that_are_no_part_of_a_folders_name(name):
    with pytest.raises(ConfigError, match="'run-name' must be"):
        parse(run_name=name)


@pytest.mark.parametrize("name", ["", "a", "fedbnn-seed1", "Versuch 3.1", "größe_2+x"])
def test_run_names(name):
    assert parse(run_name=name).run_name == name


def test_override_replaces_only_its_key():
    config = parse(lr=0.5, seed=7)
    assert (config.lr, config.seed) == (0.5, 7)
    assert config.batch_size == default_mapping()["batch-size"]


def test_an_integer_is_a_valid_float_but_not_the_reverse():
    assert parse(lr=1).lr == 1.0
    with pytest.raises(ConfigError, match=r"'seed' must be a int, got 1\.5"):
        parse(seed=1.5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"learning_rate": 0.1},
            "unknown config key 'learning-rate'; valid keys: .*lr",
        ),
        ({"method": "fedprox"}, "one of .*fedavg.*fedbnn"),
        ({"model": "vgg"}, "one of cnn4, resnet10, resnet18, convnext-tiny"),
        ({"uplink_bits": 4}, "'uplink-bits' must be one of 32, 16, 8, 1; got 4"),
        ({"downlink_bits": 1}, "must be one of 32, 16, 8, 4; got 1"),
        ({"gradient_bits": 5}, "must be one of 0, 32, 8, 6, 4; got 5"),
        ({"partition": "random"}, "one of iid, dirichlet, label-fraction, natural"),
        ({"lr": -0.1}, "'lr' must be between 0 and 1000, got -0.1"),
        ({"lr": float("nan")}, "'lr' must be between"),
        ({"num_server_rounds": 0}, "'num-server-rounds' must be between 1"),
        ({"batch_size": 1}, "'batch-size' must be between 2"),
        ({"server_alignment": "yes"}, "'server-alignment' must be a bool, got 'yes'"),
        ({"seed": True}, "'seed' must be a int, got True"),
    ],
)
def test_a_bad_key_or_value_is_an_error_that_helps(overrides, message):
    with pytest.raises(ConfigError, match=message):
        parse(**overrides)


def test_a_missing_key_is_named():
    mapping = default_mapping()
    del mapping["lr"]
    with pytest.raises(ConfigError, match="missing config keys: lr"):
        RunConfig.from_mapping(mapping)


def test_learning_rate_halves_at_200_400_600():
    halving = {"lr_schedule": "halve", "lr_halve_from": 200, "lr_halve_every": 200}
    config = parse(lr=0.1, **halving)
    rates = {r: config.learning_rate(r) for r in (0, 199, 200, 399, 400, 1499)}
    assert rates == pytest.approx(
        {0: 0.1, 199: 0.1, 200: 0.05, 399: 0.05, 400: 0.025, 1499: 0.1 / 128}
    )


@pytest.mark.parametrize(
    ("schedule", "middle"),
    [("linear", 0.1 * 3 / 4), ("cosine", 0.1 * (2 + 2**0.5) / 4)],
)
def test_learning_rate_falls_towards_zero(schedule, middle):
    config = parse(lr=0.1, lr_schedule=schedule, num_server_rounds=8)
    assert config.learning_rate(0) == pytest.approx(0.1)
    assert config.learning_rate(2) == pytest.approx(middle)
    assert 0 < config.learning_rate(7) < 0.02


def test_learning_rate_never_halves_from_zero():
    assert parse(lr=0.1, lr_halve_from=0).learning_rate(10**6) == 0.1

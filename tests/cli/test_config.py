"""`fedbnn config` says what `RunConfig` accepts."""

import json
import math
import re
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedbnn_core.cli import app
from fedbnn_core.cli.config import config_keys
from fedbnn_core.config import RunConfig, default_mapping, run_config
from fedbnn_core.errors import ConfigError

KEYS = {key.key: key for key in config_keys()}
SOURCE = Path(run_config.__file__).read_text(encoding="utf-8")


def invoke(*arguments):
    result = CliRunner().invoke(app, ["config", *arguments], env={"COLUMNS": "160"})
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_every_key_is_there_with_its_default():
    assert {name: key.default for name, key in KEYS.items()} == default_mapping()
    assert len(KEYS) == len(fields(RunConfig))


@pytest.mark.parametrize("name", KEYS)
def test_the_meaning_is_the_line_below_the_field(name):
    pattern = rf'\n    {name.replace("-", "_")}: [^\n]*\n    """(.+?)"""\n'
    assert KEYS[name].meaning == re.search(pattern, SOURCE, re.DOTALL)[1]
    assert "\n" not in KEYS[name].meaning


@pytest.mark.parametrize("name", KEYS)
def test_what_it_says_is_accepted_and_the_rest_refused(name):
    key = KEYS[name]
    for value in key.choices:
        RunConfig.from_mapping({name: value}, complete=False)
    if key.choices:
        with pytest.raises(ConfigError):
            RunConfig.from_mapping({name: "none of these"}, complete=False)
    if key.range is not None:
        kind = {"int": int, "float": float}[key.type]
        for bound, step in zip(key.range, (-1, 1), strict=True):
            RunConfig.from_mapping({name: kind(bound)}, complete=False)
            outside = (
                bound + step if kind is int else math.nextafter(bound, step * 1e308)
            )
            with pytest.raises(ConfigError):
                RunConfig.from_mapping({name: kind(outside)}, complete=False)


def test_table_and_json_show_all():
    table = invoke()
    rows = json.loads(invoke("--json"))
    assert [row["key"] for row in rows] == list(KEYS)
    for name in KEYS:
        assert name in table
    assert rows[0]["choices"] == list(KEYS["method"].choices)


def test_words_choose_keys():
    rows = json.loads(invoke("fedbat", "--json"))
    assert [row["key"] for row in rows] == ["fedbat-rho", "fedbat-warm-up"]
    with pytest.raises(ConfigError, match="shows them all"):
        invoke("nothing-like-that")


@pytest.mark.parametrize("command", [["run"], ["deploy", "run"]])
def test_help_points_to_it(command):
    result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "160"})
    assert "fedbnn config" in result.output

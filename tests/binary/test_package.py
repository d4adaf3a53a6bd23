"""The room's public names, and how little loading them takes."""

import json
import subprocess
import sys

import pytest

import fedbnn_core.binary as binary

_LOADED = """
import json, sys
{}
print(json.dumps(sorted(sys.modules)))
"""


def modules_after(statement: str) -> set[str]:
    """Return what a fresh process has loaded after one statement."""
    command = [sys.executable, "-c", _LOADED.format(statement)]
    return set(json.loads(subprocess.check_output(command, text=True)))


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.split(".")[0] == "fedbnn_core"}


def test_importing_the_room_loads_at_most_eight_of_our_modules() -> None:
    assert len(ours(modules_after("import fedbnn_core.binary"))) <= 8


def test_the_whole_room_needs_torch_choices_and_errors_only() -> None:
    loaded = modules_after("from fedbnn_core.binary import *")
    outside = {m for m in ours(loaded) if not m.startswith("fedbnn_core.binary")}
    assert outside == {"fedbnn_core", "fedbnn_core.choices", "fedbnn_core.errors"}
    assert "torch" in loaded
    assert not {"flwr", "safetensors", "PIL", "wandb", "tensorboard"} & loaded


@pytest.mark.parametrize("name", binary.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(binary, name).__doc__
    assert name in dir(binary)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"fedbnn_core\.binary.*'nothing'"):
        _ = binary.nothing

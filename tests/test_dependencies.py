"""What the code imports is what pyproject.toml declares."""

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OURS = {"benchmarks", "client_app", "fedbnn_core", "server_app", "tests"}
# Trackers that a user chooses to install; a missing one is named with its remedy.
CHOSEN_BY_THE_USER = {"mlflow", "wandb"}
# Modules of these names come with a distribution of another name.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "dp_accounting": "dp-accounting",
    "functorch": "torch",
    "grpc": "grpcio",
    "ray": "flwr[simulation]",
    "yaml": "pyyaml",
}


def imported(folder):
    """Return the top-level names that a folder's modules import, anywhere in them."""
    names = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - OURS - CHOSEN_BY_THE_USER


def requirement(text):
    """Return a requirement's name, with its extra if it has one."""
    return re.match(r"[A-Za-z0-9._-]+(\[\w+\])?", text)[0]


def declared(*extras):
    optional = PROJECT["project"]["optional-dependencies"]
    lists = [PROJECT["project"]["dependencies"], *(optional[name] for name in extras)]
    names = {requirement(text) for entry in lists for text in entry}
    for name in [name for name in names if name.startswith("fedbnn[")]:
        names |= declared(name[len("fedbnn[") : -1])
    return names


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        ("fedbnn_core", ("device", "simulation", "bench", "privacy")),
        ("client_app", ("device",)),
        ("server_app", ("device",)),
        ("benchmarks", ("device", "simulation", "bench", "privacy", "dev")),
        ("tests", ("device", "simulation", "bench", "privacy", "dev")),
    ],
)
def test_every_import_is_declared(folder, extras):
    wanted = {DISTRIBUTIONS.get(name, name) for name in imported(ROOT / folder)}
    assert wanted - declared(*extras) == set()


def test_all_requirements_are_kept_from_uv():
    """Flower runs `uv sync` at every run; all of ours must be excluded there."""
    every = declared(*PROJECT["project"]["optional-dependencies"])
    names = {re.sub(r"\[.*", "", name) for name in every} - {"fedbnn"}
    assert set(PROJECT["tool"]["uv"]["exclude-dependencies"]) == names


def test_the_names_of_distributions_are_right():
    owners = metadata.packages_distributions()
    for module, distribution in DISTRIBUTIONS.items():
        if module in owners and "[" not in distribution:
            assert distribution in {name.lower() for name in owners[module]}

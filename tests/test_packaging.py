"""What the package declares: nothing is fetched at run time, versions agree."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedbnn_core

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_flowers_uv_sync_sees_no_package_to_fetch():
    """Flower runs `uv sync` on pyproject.toml at every bare `flwr run .`."""
    project = PYPROJECT["project"]
    requirements = list(project["dependencies"])
    for group in project["optional-dependencies"].values():
        requirements += group
    names = {re.split(r"[\[<>=!~; ]", text)[0].lower() for text in requirements}
    excluded = set(PYPROJECT["tool"]["uv"]["exclude-dependencies"])
    assert names - {"fedbnn"} == excluded


def test_one_version():
    assert PYPROJECT["project"]["version"] == fedbnn_core.__version__


def test_flower_and_torch_are_pinned():
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert {"fedbnn[training]", "flwr==1.39.0"} <= set(extras["device"])
    assert {"torch==2.13.0", "torchvision==0.28.0"} <= set(extras["training"])


def test_a_simulation_takes_later_versions_of_flower_too():
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert "flwr[simulation]>=1.39,<2" in extras["simulation"]
    # Where devices and simulations are tested together, the pin of devices decides.
    assert "'.[device,simulation," in (ROOT / "Makefile").read_text()


def test_the_bundle_holds_no_code():
    assert PYPROJECT["tool"]["flwr"]["app"]["fab-include"] == [
        "pyproject.toml",
        "README.md",
    ]


def test_core_imports_without_flower_and_packed_without_torch():
    code = (
        "import sys; sys.modules['flwr'] = None\n"
        "import fedbnn_core.methods.fedbnn, fedbnn_core.server.run, fedbnn_core.cli\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    code = (
        "import sys; sys.modules['flwr'] = None; sys.modules['torch'] = None\n"
        "from fedbnn_core.packed import PackedModel\n"
        "assert 'torchvision' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_lists_every_target():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split()
    # Run below `make test`, make would speak of the directories it enters, too.
    shown = subprocess.run(
        ["make", "--no-print-directory"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    listed = [line.split()[1] for line in shown.splitlines()]
    assert sorted(listed) == sorted(targets)

"""Every command where only the base dependencies are installed.

Either it works, or it names the extra to install; it never ends in a traceback. The
commands run in a process that cannot import anything else.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

from fedbnn_core.cli import app
from fedbnn_core.fleet import Fleet
from fedbnn_core.speed.runtimes import packed_bytes
from tests.reporting.report.runs import write_run

# Arguments of every command, and the extra it asks for; None: it works without one.
COMMANDS = {
    "bench": (["--model", "cnn4", "--rounds", "1"], "device"),
    "compare": (["{run}", "{run}", "--plot", "{folder}/plot.png"], "device"),
    "complexity": ([], "device"),
    "config": ([], None),
    "dashboard": (["{run}"], "device"),
    "data check": (["{images}"], None),
    "data get": (["fmnist-mini"], None),
    "data list": ([], None),
    "deploy run": (["--fleet", "{fleet}"], "device"),
    "deploy status": (["--fleet", "{fleet}"], "device"),
    "deploy stop": (["1", "--fleet", "{fleet}"], "device"),
    "device": (["--bundle", "{fleet}/bundles/camera.bundle"], "device"),
    "evaluate": (["{model}", "--dataset", "npz:{folder}/ten.npz"], None),
    "experiment list": ([], None),
    "experiment plot": (["--help"], None),
    "experiment publish": (["--help"], None),
    "experiment run": (["fmnist-cnn4-iid"], "simulation"),
    "experiment table": (["--help"], None),
    "export": (["{run}"], "device"),
    "fit-check": (["--target-ram", "64k", "--target-flash", "128k"], "device"),
    "fleet add": (["second", "--fleet", "{fleet}"], "device"),
    "fleet bundle": (["camera", "--fleet", "{fleet}"], "device"),
    "fleet health": (["--fleet", "{fleet}"], "device"),
    "fleet init": (["--host", "h", "--fleet", "{folder}/new"], "device"),
    "fleet list": (["--fleet", "{fleet}"], "device"),
    "fleet remove": (["camera", "--fleet", "{fleet}"], "device"),
    "fleet renew": (["--fleet", "{fleet}"], "device"),
    "fleet serve": (["--insecure"], "device"),
    "info": (["{model}"], None),
    "partition": (["--clients", "5"], "device"),
    "predict": (["{model}", "{images}/a/0.png"], None),
    "raw": (["{model}", "{images}/a/0.png"], None),
    "report": (["{run}"], "device"),
    "resume": (["{stopped}"], "simulation"),
    "run": (["--clients", "2"], "simulation"),
}

SCRIPT = '''
import contextlib, io, json, re, sys, traceback
from importlib import metadata

def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()

def installed_with(name):
    """Return the names of a distribution and of all that it needs without extras."""
    seen, waiting = set(), [name]
    while waiting:
        name = canonical(waiting.pop())
        if name in seen:
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        seen.add(name)
        needs = [need for need in needs if "extra ==" not in need]
        waiting += [re.match(r"[A-Za-z0-9._-]+", need)[0] for need in needs]
    return seen

base = installed_with("fedbnn")
blocked = {
    module
    for module, owners in metadata.packages_distributions().items()
    if not base & {canonical(owner) for owner in owners}
}
assert {"torch", "flwr", "cryptography", "fastapi"} <= blocked
assert not {"numpy", "typer", "rich", "PIL", "fedbnn_core"} & blocked

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
from fedbnn_core.cli import main

results = {}
for command, arguments in json.loads(sys.argv[1]).items():
    sys.argv = ["fedbnn", *command.split(), *arguments]
    told, code = io.StringIO(), 0
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            main()
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
            code = "traceback"
    results[command] = code, told.getvalue()
print(json.dumps(results))
'''


FOLDERS = ("fleet", "images", "run", "stopped")


def leaves(group, prefix=""):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{prefix}{name} ")
        else:
            yield prefix + name


def write_ten_classes(path):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (40, 28, 28, 1), np.uint8)
    labels = np.arange(40) % 10
    names = np.array([f"class {label}" for label in range(10)])
    np.savez(
        path,
        x_train=images,
        y_train=labels,
        x_test=images,
        y_test=labels,
        class_names=names,
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    places = {name: str(folder / name) for name in FOLDERS}
    places |= {"folder": str(folder), "model": str(folder / "model.fbnn")}
    Path(places["model"]).write_bytes(packed_bytes("cnn4", (1, 28, 28)))
    Fleet.create(folder / "fleet", ["localhost"]).add("camera")
    write_run(folder / "run", rounds=2)
    write_run(folder / "stopped", rounds=2)
    (folder / "stopped" / "summary.json").unlink()
    write_ten_classes(folder / "ten.npz")
    generator = np.random.default_rng(1)
    for label in "ab":
        (folder / "images" / label).mkdir(parents=True)
        for number in range(20):
            pixels = generator.integers(0, 256, (28, 28), np.uint8)
            Image.fromarray(pixels).save(folder / "images" / label / f"{number}.png")
    orders = {
        command: [argument.format(**places) for argument in arguments]
        for command, (arguments, _) in COMMANDS.items()
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(orders)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_no_command_is_forgotten():
    assert set(leaves(typer.main.get_command(app))) == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_it_works_or_names_the_extra(command, results):
    code, told = results[command]
    extra = COMMANDS[command][1]
    if extra is None:
        assert code == 0, told
    else:
        assert code == 1, told
        assert f"pip install 'fedbnn[{extra}]'" in told

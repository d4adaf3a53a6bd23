"""What `make dist` makes: wheel, source distribution and a Flower app that needs both.

The app runs from an empty folder, in an environment that has Flower but not FedBNN,
which Flower installs at the start of the run from the local folder of wheels.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from fedbnn_core.flower.processes import end_marked_processes
from tests.deploy.site import QUICK, ROOT, Service, free_port

APP = ROOT / "flower-app"
OURS = tomllib.loads((ROOT / "pyproject.toml").read_text())
THEIRS = tomllib.loads((APP / "pyproject.toml").read_text())
BIN = Path(sys.executable).parent
MARKER = "FEDBNN_TEST_PUBLISHED"


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Build all three from a copy, as `make dist` does."""
    tree = tmp_path_factory.mktemp("tree")
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    for name in filter(None, map(os.fsdecode, tracked)):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    (tree / ".venv").symlink_to(sys.prefix)
    (tree / "build").mkdir()
    subprocess.run(
        ["make", "-o", ".venv/.installed", "dist"],
        cwd=tree,
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=600,
    )
    return tree / "dist"


def only(folder, pattern):
    (path,) = folder.glob(pattern)
    return path


def test_the_app_has_the_config_the_licence_and_the_version_of_fedbnn():
    ours, theirs = (t["tool"]["flwr"]["app"] for t in (OURS, THEIRS))
    assert theirs["config"] == ours["config"]
    assert theirs["publisher"] == ours["publisher"]
    assert (APP / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    version = OURS["project"]["version"]
    assert THEIRS["project"]["version"] == version
    assert f"fedbnn[training]=={version}" in THEIRS["project"]["dependencies"]
    # What format 1 asks for.
    assert theirs["fab-format-version"] == 1
    assert (
        f"flwr>={theirs['flwr-version-target']},<2"
        in (THEIRS["project"]["dependencies"])
    )


@pytest.mark.slow
def test_one_wheel_serves_all_versions_of_python(dist):
    wheel = only(dist, "*.whl")
    assert "-cp311-abi3-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("_native.abi3.so") for name in names)
    assert "server_app/app.py" in names


@pytest.mark.slow
def test_the_source_distribution_has_all_that_the_wheel_is_built_from(dist):
    with tarfile.open(only(dist, "*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for extension in OURS["tool"]["setuptools"]["ext-modules"]:
        assert {*extension["sources"], *extension["depends"]} <= names
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert {f"experiments/{p.name}" for p in ROOT.glob("experiments/*.toml")} <= names


@pytest.mark.slow
def test_the_bundle_holds_the_thin_app_only(dist):
    names = set(zipfile.ZipFile(only(dist, "*.fab")).namelist())
    modules = {f"fedbnn_app/{n}.py" for n in ("__init__", "client_app", "server_app")}
    assert names - {".info/CONTENT"} == {
        *modules,
        *("LICENSE", "README.md", "pyproject.toml"),
    }


def environment_without_fedbnn(folder):
    """Make an environment with all packages of this one but FedBNN."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True
    )
    packages = only(folder, "lib/python*/site-packages")
    # A path file is not read a second time, so the editable FedBNN stays unknown.
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    for script in [*BIN.glob("fl*wer-*"), *BIN.glob("flwr*"), BIN / "ray", BIN / "uv"]:
        content = script.read_bytes()
        if content.startswith(b"#!"):
            _, _, rest = content.partition(b"\n")
            content = f"#!{folder}/bin/python\n".encode() + rest
        (folder / "bin" / script.name).write_bytes(content)
        (folder / "bin" / script.name).chmod(0o755)
    return folder / "bin"


def write_empty_wheel(folder, name):
    """Stand in for a package that the environment has, so that no network is asked."""
    try:
        found = version(name)
    except PackageNotFoundError:
        return
    stem = f"{name.replace('-', '_')}-{found}"
    info = f"{stem}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {found}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)


@pytest.mark.deploy
def test_the_bundle_runs_from_an_empty_folder(dist, tmp_path):
    programs = environment_without_fedbnn(tmp_path / "env")
    python = str(programs / "python")
    missing = subprocess.run(
        [python, "-c", "import fedbnn_core"], cwd=tmp_path, capture_output=True
    )
    assert b"ModuleNotFoundError" in missing.stderr
    app = tmp_path / "empty" / "fedbnn-app"
    app.mkdir(parents=True)
    shutil.unpack_archive(only(dist, "*.fab"), app, "zip")
    wheels = tmp_path / "wheels"
    shutil.copytree(dist, wheels)
    for name in OURS["tool"]["uv"]["exclude-dependencies"]:
        write_empty_wheel(wheels, name)
    (tmp_path / "uv.toml").write_text(
        f"no-index = true\nfind-links = [{json.dumps(str(wheels))}]\n"
    )
    runs = tmp_path / "runs"
    environment = os.environ | {
        MARKER: str(tmp_path),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "UV_CONFIG_FILE": str(tmp_path / "uv.toml"),
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "RAY_ADDRESS": "local",
    }
    values = QUICK | {"output-dir": str(runs), "clients-per-round": 2}
    config = " ".join(f"{k}={json.dumps(v)}" for k, v in values.items())
    # `flwr run` starts one by itself, but gives it 15 s, which a busy machine exceeds.
    port = environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"]
    command = [str(programs / "flower-superlink"), "--insecure", "--simulation"]
    command += ["--host", "127.0.0.1", "--port", port]
    try:
        link = Service(command, tmp_path / "link.log", environment, app.parent)
        link.wait_for("Uvicorn running")
        done = subprocess.run(
            [
                *(str(programs / "flwr"), "run", str(app), "--stream"),
                *("--run-config", config),
                *("--federation-config", "num-supernodes=2"),
            ],
            cwd=app.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
        )
    finally:
        end_marked_processes(MARKER, str(tmp_path))
    assert runs.is_dir(), done.stdout + done.stderr
    assert (only(runs, "*") / "model.fbnn").is_file()
    assert (only(runs, "*") / "summary.json").is_file()

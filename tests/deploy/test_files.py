"""What compose files and systemd unit say, and whether the guides still hold."""

import configparser
import re
import shlex
import tomllib
from pathlib import PurePath

import click
import pytest
import typer
import yaml
from typer.testing import CliRunner

from fedbnn_core.cli import app
from fedbnn_core.errors import FleetError
from tests.deploy.site import ROOT
from tests.deploy.stack import interpolate

FILES = ("compose.yaml", "docker/server.yaml", "docker/client.yaml")
GUIDES = ("README.md", "docker/README.md", "experiments/README.md")
SETTINGS = {"FEDBNN_HOST": "fleet.example.org", "DATA": "/photos"}
DOCKERFILE = ROOT / "docker/Dockerfile"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def compose(name, **variables):
    return yaml.safe_load(interpolate((ROOT / name).read_text(), SETTINGS | variables))


def build_arguments():
    return dict(re.findall(r"^ARG (\w+)=(.*)$", DOCKERFILE.read_text(), re.MULTILINE))


def unit():
    content = configparser.ConfigParser(interpolation=None)
    content.optionxform = str
    content.read(ROOT / "docker" / "fedbnn-device.service")
    return content["Service"]


def fenced_lines(name):
    """Return the lines of a guide's shell blocks; a continued line is one."""
    text = (ROOT / name).read_text()
    blocks = re.findall(r"^```(?:ba)?sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return "".join(blocks).replace("\\\n", " ").splitlines()


def simple_commands(line):
    """Split a shell line into the words of its single commands."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    commands = [[]]
    for word in words:
        if set(word) <= set("();&|<>"):
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


def fedbnn_calls(name):
    """Yield the arguments of every call of fedbnn in a guide, in containers as well."""
    for line in fenced_lines(name):
        for words in simple_commands(line):
            while words and re.match(r"[A-Z_]+=", words[0]):
                words = words[1:]
            if words[:2] == ["docker", "compose"] and "fedbnn" in words:
                yield words[words.index("fedbnn") + 1 :]
            elif words and re.fullmatch(r"(.*/bin/)?fedbnn", words[0]):
                yield words[1:]


@pytest.mark.parametrize(
    ("name", "ports"), [*zip(FILES, ([], ["9092:9092"], []), strict=True)]
)
def test_nothing_but_the_port_for_devices_is_published(name, ports):
    services = compose(name)["services"]
    published = [port for entry in services.values() for port in entry.get("ports", [])]
    assert published == ports
    assert not any(entry.get("network_mode") == "host" for entry in services.values())


@pytest.mark.parametrize("name", FILES)
def test_one_service_per_image_builds_it_and_none_pulls_it(name):
    """Compose builds in parallel; a second export of an image's name fails."""
    services = compose(name)["services"].values()
    images = [entry["image"] for entry in services if "build" in entry]
    assert sorted(images) == sorted({entry["image"] for entry in services})
    assert {entry["pull_policy"] for entry in services} == {"never"}


@pytest.mark.parametrize("name", FILES)
def test_what_the_files_build_is_what_the_dockerfile_says(name):
    stages = re.findall(r"^FROM .* AS (\w+)$", DOCKERFILE.read_text(), re.MULTILINE)
    builds = [s["build"] for s in compose(name)["services"].values() if "build" in s]
    for build in builds:
        assert build["args"] == build_arguments()
        assert build["target"] in stages
        context = (ROOT / name).parent / build["context"]
        assert (context / build["dockerfile"]).samefile(DOCKERFILE)


def test_the_gpu_file_adds_to_the_client_file():
    services = compose("docker/gpu.yaml")["services"]
    client = compose("docker/client.yaml")["services"]
    assert set(services) == set(client)
    (device,) = services.values()
    # An image of its own: otherwise a CPU image that is there already would be taken.
    assert device["image"] not in {entry["image"] for entry in client.values()}
    assert set(device["build"]["args"]) <= set(build_arguments())
    assert device["build"]["args"]["TORCH"].startswith("cu")
    (reserved,) = device["deploy"]["resources"]["reservations"]["devices"]
    assert reserved["capabilities"] == ["gpu"]


def test_no_two_files_or_devices_share_a_project():
    """Otherwise `down` of one ends the other and they mix their volumes."""
    names = [compose(name)["name"] for name in FILES]
    names.append(compose("docker/client.yaml", DEVICE="attic")["name"])
    assert len(set(names)) == 4
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name) for name in names)


def test_the_folder_of_datasets_reaches_the_server_and_its_devices():
    services = compose("compose.yaml", FEDBNN_DATASETS="/srv/sets")["services"]
    holders = {
        name
        for name, entry in services.items()
        if "/srv/sets:/data:ro" in entry["volumes"]
    }
    assert holders == {"superlink", "device-0", "device-1"}
    assert services["superlink"]["environment"]["FEDBNN_DATA"] == "/data"
    command = services["device-0"]["command"]
    assert command[command.index("--data-dir") + 1] == "/data"


def test_the_systemd_unit_starts_a_device():
    """Its command is understood, and misses nothing but the bundle."""
    program, *arguments = shlex.split(unit()["ExecStart"])
    assert program.endswith("/bin/fedbnn")
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, FleetError), result.output
    bundle = arguments[arguments.index("--bundle") + 1]
    assert f"there is no bundle at {bundle}" in str(result.exception)


def test_the_systemd_units_files_are_for_its_user_only():
    """It unpacks a key and keeps decoded images."""
    assert int(unit()["StateDirectoryMode"], 8) == 0o700
    assert int(unit()["UMask"], 8) == 0o077


def test_the_guide_prepares_what_the_systemd_unit_names():
    lines = fenced_lines("docker/README.md")
    program, *arguments = shlex.split(unit()["ExecStart"])
    bundle = arguments[arguments.index("--bundle") + 1]
    user = unit()["User"]
    assert any(re.search(rf"useradd .* {user}$", line) for line in lines)
    venv = PurePath(program).parents[1]
    assert any(f"python3 -m venv {venv} " in line for line in lines)
    assert any(
        f"install -m 600 -o {user} " in line and bundle in line for line in lines
    )


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guides_commands_exist_with_their_options(guide):
    keys = PROJECT["tool"]["flwr"]["app"]["config"]
    calls = list(fedbnn_calls(guide))
    assert len(calls) > 4
    for call in calls:
        command, words = typer.main.get_command(app), list(call)
        while isinstance(command, click.Group):
            assert words, f"fedbnn {shlex.join(call)}: a command is missing"
            assert words[0] in command.commands, f"no fedbnn {shlex.join(call)}"
            command = command.commands[words.pop(0)]
        # Raises if an option does not exist or lacks its value.
        values, left, _ = command.make_parser(click.Context(command)).parse_args(words)
        assert not left, f"fedbnn {shlex.join(call)}: {left} is too much"
        for parameter in command.params:
            assert not parameter.required or values.get(parameter.name), call
        if command.name in ("run", "resume"):
            settings = values.get("config") or []
            assert {setting.partition("=")[0] for setting in settings} <= set(keys)


@pytest.mark.parametrize("guide", GUIDES)
def test_what_a_guide_installs_exists(guide):
    for line in fenced_lines(guide):
        for extras in re.findall(r"'\.\[([\w,]+)\]'", line):
            assert set(extras.split(",")) <= set(
                PROJECT["project"]["optional-dependencies"]
            )
            # [tool.uv] of this project, which is for Flower, excludes all packages.
            assert "uv pip install" not in line or "--no-config" in line


@pytest.mark.parametrize("name", ["docker/README.md", "docker/server.yaml"])
def test_a_bundle_is_written_for_its_owner_only(name):
    text = (ROOT / name).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if "> camera.bundle" in line]
    assert lines
    assert all("(umask 077; " in line for line in lines)


@pytest.mark.parametrize("name", FILES)
def test_the_guide_writes_required_settings_where_every_command_finds_them(name):
    """Compose asks for them in `logs` and `down`, too."""
    text = (ROOT / "docker/README.md").read_text()
    kept = re.findall(r"^echo (\w+)=.* >> docker/\.env$", text, re.MULTILINE)
    for block in re.findall(r">> docker/\.env <<END\n(.*?)^END", text, re.M | re.S):
        kept += re.findall(r"^(\w+)=", block, re.MULTILINE)
    required = re.findall(r"\$\{(\w+):\?", (ROOT / name).read_text())
    assert set(required) <= set(kept)
    assert set(required) <= set(SETTINGS)

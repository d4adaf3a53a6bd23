"""Who may import what: the order of the packages and the borders of three of them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = ROOT / "fedbnn_core"
# Each package imports only packages above it in this list.
PACKAGES = (
    *("binary", "config", "networks", "data", "training", "aggregation", "wire"),
    *("methods", "packed", "export", "runs", "fleet", "flower", "reporting"),
    *("experiments", "speed", "server", "cli"),
)
MODULES = sorted(
    path
    for folder in ("fedbnn_core", "client_app", "server_app")
    for path in (ROOT / folder).rglob("*.py")
)
LONGEST_MODULE = 320
MOST_ROOT_FILES = 9
# The public API loads lazily and names modules of every package.
PUBLIC_API = CORE / "__init__.py"
NOT_FOR_USERS = ("fedbnn.md", "baselines.md", "integers.md", "house.md", "../shared")


def name_of(path):
    return str(path.relative_to(ROOT))


def imports(path):
    """Yield (line, module) of all imports, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: relative import"
            yield node.lineno, node.module
            # from fedbnn_core import runs
            yield from ((node.lineno, f"{node.module}.{a.name}") for a in node.names)


def package_of(module):
    """Return the package of fedbnn_core that a module belongs to, if any."""
    parts = module.split(".")
    is_ours = parts[0] == "fedbnn_core" and len(parts) > 1 and parts[1] in PACKAGES
    return parts[1] if is_ours else None


def test_every_package_has_its_place():
    found = {path.parent.name for path in CORE.glob("*/__init__.py")}
    assert found == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_packages_above_it(package):
    allowed = PACKAGES[: PACKAGES.index(package) + 1]
    wrong = sorted(
        f"{name_of(path)}:{line} imports {module}"
        for path in (CORE / package).rglob("*.py")
        for line, module in imports(path)
        if (package_of(module) or package) not in allowed
        or module.split(".")[0] in ("client_app", "server_app")
    )
    assert wrong == []


def test_modules_at_the_root_import_no_package():
    wrong = sorted(
        f"{name_of(path)}:{line} imports {module}"
        for path in CORE.glob("*.py")
        if path != PUBLIC_API
        for line, module in imports(path)
        if package_of(module)
    )
    assert wrong == []


def test_only_flower_and_the_apps_import_flwr():
    wrong = sorted(
        f"{name_of(path)}:{line}"
        for path in CORE.rglob("*.py")
        if not path.is_relative_to(CORE / "flower")
        for line, module in imports(path)
        if module.split(".")[0] == "flwr"
    )
    assert wrong == []


def loaded_by(module):
    """Return the modules that a fresh process has after an import."""
    code = f"import {module}, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_binary_loads_at_most_8_of_our_modules():
    loaded = loaded_by("fedbnn_core.binary")
    ours = {name for name in loaded if name.split(".")[0] == "fedbnn_core"}
    assert len(ours) <= 8, sorted(ours)
    assert "flwr" not in loaded
    assert "fedbnn_core.data" not in loaded


def test_a_binary_layer_loads_nothing_outside_its_package_but_names_and_errors():
    loaded = loaded_by("fedbnn_core.binary.layer")
    ours = {name for name in loaded if name.split(".")[0] == "fedbnn_core"}
    outside = {name for name in ours if package_of(name) != "binary"}
    assert outside <= {"fedbnn_core", "fedbnn_core.choices", "fedbnn_core.errors"}
    assert "flwr" not in loaded


def test_packed_loads_neither_torch_nor_flower():
    assert not {"torch", "flwr", "fedbnn_core.binary"} & loaded_by("fedbnn_core.packed")


def test_the_root_has_few_files():
    found = sorted(path.name for path in CORE.iterdir() if path.is_file())
    assert len(found) <= MOST_ROOT_FILES, found


def test_no_module_is_long():
    lengths = {
        name_of(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in MODULES
    }
    long = {name: size for name, size in lengths.items() if size > LONGEST_MODULE}
    assert long == {}


def test_no_module_points_to_a_file_that_users_lack():
    wrong = sorted(
        f"{name_of(path)}:{number} {word}"
        for path in MODULES
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        for word in NOT_FOR_USERS
        if word in line
    )
    assert wrong == []

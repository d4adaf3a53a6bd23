"""METHOD.md: every equation is there, and leads to a function that names it."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "fedbnn_core"
PAGE = (PACKAGE / "binary" / "METHOD.md").read_text(encoding="utf-8")
POINTERS = sorted(set(re.findall(r"`([\w/]+\.py)::([\w.]+)`", PAGE)))
EQUATION = re.compile(
    r"^\| (\d+) \| (.+) \| `([\w/]+\.py)::([\w.]+)` \|$", re.MULTILINE
)
ROWS = [(int(number), path, name) for number, _, path, name in EQUATION.findall(PAGE)]

Definition = ast.FunctionDef | ast.ClassDef


def find(path: str, qualified_name: str) -> Definition:
    """Return the function or class of a pointer ``path::Class.method``."""
    node: ast.Module | Definition = ast.parse((PACKAGE / path).read_text("utf-8"))
    for part in qualified_name.split("."):
        found = [
            child
            for child in node.body
            if isinstance(child, Definition) and child.name == part
        ]
        assert found, f"{path} has no {qualified_name}"
        node = found[0]
    assert isinstance(node, Definition)
    return node


def test_the_table_has_each_number_once_and_in_order() -> None:
    assert [number for number, _, _ in ROWS] == list(range(1, 29))


@pytest.mark.parametrize(("path", "name"), POINTERS)
def test_every_pointer_leads_to_a_definition(path: str, name: str) -> None:
    assert ast.get_docstring(find(path, name))


@pytest.mark.parametrize(("number", "path", "name"), ROWS)
def test_a_function_names_its_equation(number: int, path: str, name: str) -> None:
    docstring = ast.get_docstring(find(path, name)) or ""
    assert re.search(rf"\bEq\. {number}\b", docstring), f"{path}::{name}"


def test_docstrings_name_no_other_equations() -> None:
    for path in (PACKAGE / "binary").glob("*.py"):
        for number in re.findall(r"\bEq\. (\d+)", path.read_text("utf-8")):
            assert 1 <= int(number) <= 28, path.name


def test_readme_cites_the_paper_and_leads_here() -> None:
    readme = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
    for text in (readme, PAGE):
        flat = " ".join(text.split())
        assert "Federated Learning of Binary Neural Networks: Enabling Low-Cost" in flat
    assert "fedbnn_core/binary/METHOD.md" in readme

"""`fedbnn config`: every key of a run, from the dataclass that reads it."""

import ast
import inspect
import textwrap
from dataclasses import asdict, dataclass, fields
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedbnn_core.cli.options import AsJson
from fedbnn_core.config import RunConfig, Value, default_mapping
from fedbnn_core.errors import ConfigError

__all__ = ["ConfigKey", "config", "config_keys"]


@dataclass(frozen=True)
class ConfigKey:
    """One key of a run's config."""

    key: str
    type: str
    default: Value
    choices: tuple[Value, ...]
    """The values it may take; empty if they are not listed."""
    range: tuple[float, float] | None
    """Smallest and largest value of a number."""
    meaning: str


def config_keys() -> list[ConfigKey]:
    """Return all keys, as `RunConfig` declares and ``pyproject.toml`` sets them."""
    defaults = default_mapping()
    meanings = _field_docstrings(RunConfig)
    keys = []
    for entry in fields(RunConfig):
        key = entry.name.replace("_", "-")
        keys.append(
            ConfigKey(
                key=key,
                type=getattr(entry.type, "__name__", str(entry.type)),
                default=defaults[key],
                choices=tuple(entry.metadata.get("choices", ())),
                range=entry.metadata.get("range"),
                meaning=meanings[entry.name],
            )
        )
    return keys


def config(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Show only keys with one of these words, such as fedbat."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show every config key: its default, what it may be, and what it means.

    Set them with -c KEY=VALUE in `fedbnn run`, `deploy run` and `flwr run`.
    """
    keys = [
        key for key in config_keys() if not words or any(w in key.key for w in words)
    ]
    if not keys:
        raise ConfigError(
            f"no config key has {' or '.join(words or ())} in it; 'fedbnn config' "
            "shows them all"
        )
    console = Console(highlight=False)
    if as_json:
        console.print_json(data=[asdict(key) for key in keys])
        return
    table = Table(box=SIMPLE_HEAD)
    table.add_column("Key", no_wrap=True, style="bold")
    table.add_column("Default", overflow="fold")
    table.add_column("May be", overflow="fold")
    table.add_column("Meaning", overflow="fold")
    for key in keys:
        cells = (key.key, _shown(key.default), _may_be(key), key.meaning)
        table.add_row(*map(Text, cells))
    console.print(table)


def _field_docstrings(cls: type) -> dict[str, str]:
    """Return the text below each field in a class's source."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)  # noqa: S101  that is what getsource gives
    found = {}
    for statement, following in zip(node.body, node.body[1:], strict=False):
        if not isinstance(statement, ast.AnnAssign):
            continue
        if isinstance(following, ast.Expr) and isinstance(
            following.value, ast.Constant
        ):
            found[ast.unparse(statement.target)] = inspect.cleandoc(
                str(following.value.value)
            )
    return found


def _may_be(key: ConfigKey) -> str:
    if key.choices:
        return ", ".join(map(str, key.choices))
    if key.range is not None:
        low, high = key.range
        return f"{key.type}, {low:g} to {high:g}"
    return "true, false" if key.type == "bool" else key.type


def _shown(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return '""' if value == "" else str(value)

"""Read the recipes in ``experiments/``: one TOML file per table row and partition.

title = "Fashion-MNIST, CNN4, IID"
[config]            keys of all scales
[paper], [mid], [short]  clients, seeds, ablation-seeds and config of a scale
[methods.NAME]      method (default NAME), config, published = { accuracy, binarized }
[ablations.NAME]    the same; run only when asked for

Later tables override earlier ones: config, the scale's, the row's.
"""

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbnn_core.config import RunConfig, Value
from fedbnn_core.errors import ConfigError

__all__ = ["Published", "Recipe", "Row", "Scale", "load_recipe", "recipe_names"]

SCALES = ("short", "mid", "paper")

_KINDS = {
    dict: "a table",
    int: "a whole number",
    int | float: "a number",
    list: "a list",
    str: "text",
}


@dataclass(frozen=True)
class Published:
    """The paper's test accuracies in percent; None where it has no figure."""

    accuracy: float | None = None
    binarized: float | None = None
    """After post-training binarization; a binary method's equals its accuracy."""


@dataclass(frozen=True)
class Row:
    """One thing that is trained: a method, or a variant of one."""

    name: str
    method: str
    config: Mapping[str, Value] = field(default_factory=dict)
    published: Published = Published()
    is_ablation: bool = False


@dataclass(frozen=True)
class Scale:
    """How much is trained."""

    clients: int
    seeds: tuple[int, ...]
    ablation_seeds: tuple[int, ...]
    """Seeds of ablations and of what they are compared with."""
    config: Mapping[str, Value]


@dataclass(frozen=True)
class Recipe:
    """One row and partition of the paper's tables."""

    name: str
    title: str
    config: Mapping[str, Value]
    scales: Mapping[str, Scale]
    rows: tuple[Row, ...]

    def row(self, name: str) -> Row:
        """Return the row of that name, or say which there are."""
        for row in self.rows:
            if row.name == name:
                return row
        known = ", ".join(row.name for row in self.rows)
        raise ConfigError(f"{self.name} has no row {name!r}; choose one of {known}")

    def scale(self, name: str) -> Scale:
        """Return the scale of that name, or say which there are."""
        if name not in self.scales:
            raise ConfigError(
                f"unknown scale {name!r}; choose one of {', '.join(self.scales)}"
            )
        return self.scales[name]

    def run_config(self, row: Row, scale: str, seed: int) -> dict[str, Value]:
        """Return the config keys of one run that differ from the defaults."""
        return {
            **self.config,
            **self.scale(scale).config,
            **row.config,
            "method": row.method,
            "seed": seed,
        }


def recipe_names() -> tuple[str, ...]:
    """Return the names of all recipes that come with FedBNN."""
    return tuple(sorted(path.stem for path in _recipe_folder().glob("*.toml")))


def load_recipe(name: str) -> Recipe:
    """Read a recipe by its name, or one's own by the path of its TOML file.

    Raises
    ------
    ConfigError
        There is none, or it holds a key or value that FedBNN does not know.
    """
    path = Path(name) if name.endswith(".toml") else _recipe_folder() / f"{name}.toml"
    if not path.is_file():
        raise ConfigError(
            f"no recipe {name!r}; choose one of {', '.join(recipe_names())}, or give "
            "the path of your own TOML file"
        )
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        recipe = _parse(path.stem, content)
        for row in recipe.rows:
            for scale in recipe.scales:
                RunConfig.from_mapping(
                    recipe.run_config(row, scale, seed=1), complete=False
                )
    except (tomllib.TOMLDecodeError, ConfigError) as error:
        raise ConfigError(f"recipe {path}: {error}") from error
    return recipe


def _parse(name: str, content: dict[str, Any]) -> Recipe:
    known = {"title", "config", "methods", "ablations", *SCALES}
    _refuse_unknown("table", content, known)
    methods = _typed(content, "methods", dict, {})
    if not methods:
        raise ConfigError("it has no table [methods.NAME]; name at least one method")
    ablations = _typed(content, "ablations", dict, {})
    rows = [_row(methods, key, is_ablation=False) for key in methods]
    rows += [_row(ablations, key, is_ablation=True) for key in ablations]
    return Recipe(
        name=name,
        title=_typed(content, "title", str, name),
        config=_typed(content, "config", dict, {}),
        scales={key: _scale(content, key) for key in SCALES if key in content},
        rows=tuple(rows),
    )


def _row(tables: dict[str, Any], name: str, *, is_ablation: bool) -> Row:
    table = _typed(tables, name, dict, {})
    _refuse_unknown(f"key of row {name}", table, {"method", "config", "published"})
    published = _typed(table, "published", dict, {})
    _refuse_unknown("published figure", published, {"accuracy", "binarized"})
    figures = {key: _typed(published, key, int | float, 0.0) for key in published}
    return Row(
        name=name,
        method=_typed(table, "method", str, name),
        config=_typed(table, "config", dict, {}),
        published=Published(**figures),
        is_ablation=is_ablation,
    )


def _scale(content: dict[str, Any], name: str) -> Scale:
    table = _typed(content, name, dict, {})
    known = {"clients", "seeds", "ablation-seeds", "config"}
    _refuse_unknown("key of a scale", table, known)
    clients = _typed(table, "clients", int, 100)
    if clients < 1:
        raise ConfigError(f"'clients' must be at least 1, got {clients}")
    return Scale(
        clients=clients,
        seeds=_seeds(table, "seeds", [1]),
        ablation_seeds=_seeds(table, "ablation-seeds", [1, 2, 3]),
        config=_typed(table, "config", dict, {}),
    )


def _seeds(table: dict[str, Any], key: str, default: list[int]) -> tuple[int, ...]:
    seeds = _typed(table, key, list, default)
    if not seeds or any(type(seed) is not int for seed in seeds):
        raise ConfigError(f"{key!r} must be whole numbers such as [1, 2], got {seeds}")
    return tuple(seeds)


def _typed(table: dict[str, Any], key: str, kind: Any, default: Any) -> Any:
    """Return a table's value, or the default; refuse one of another type."""
    value = table.get(key, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"{key!r} must be {_KINDS[kind]}, got {value!r}")
    return value


def _refuse_unknown(what: str, table: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise ConfigError(
            f"unknown {what} {unknown[0]!r}; valid: {', '.join(sorted(known))}"
        )


def _recipe_folder() -> Path:
    """Return ``experiments/`` of the source tree or of the installation."""
    places = (
        Path(__file__).resolve().parents[2] / "experiments",
        Path(sys.prefix) / "share" / "fedbnn" / "experiments",
    )
    for place in places:
        if any(place.glob("*.toml")):
            return place
    raise ConfigError(
        f"FedBNN's recipes are in none of {', '.join(map(str, places))}; "
        "reinstall fedbnn"
    )

"""The default config: ``[tool.flwr.app.config]`` of FedBNN's own ``pyproject.toml``."""

import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fedbnn_core.errors import ConfigError

__all__ = ["UNNAMED", "Value", "default_file", "default_mapping"]

Value = str | int | float | bool

UNNAMED: Mapping[str, Value] = {
    "gradient-bits": 32,
    "initial-std": 0.0,
    "omega-start": 0.0,
    "lr-schedule": "halve",
    "served-average": 0.0,
    "served-statistics": "clients",
}
"""What a run does whose stored config does not name the key: it is older than that."""


def default_file() -> Path:
    """Return FedBNN's pyproject.toml, from the source tree or the installation."""
    packages = Path(__file__).resolve().parents[2]
    # Flower may put site-packages of another environment than sys.prefix on the path.
    prefixes = (Path(sys.prefix), *packages.parents[2:3])
    shared = (prefix / "share" / "fedbnn" / "pyproject.toml" for prefix in prefixes)
    places = (packages / "pyproject.toml", *shared)
    for path in places:
        if path.is_file() and _app_config(path) is not None:
            return path
    raise ConfigError(
        f"FedBNN's pyproject.toml with the default config is in none of "
        f"{', '.join(map(str, places))}; reinstall fedbnn"
    )


@cache
def _app_config(path: Path) -> Mapping[str, Value] | None:
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    if content.get("project", {}).get("name") != "fedbnn":
        return None
    config: Mapping[str, Value] = content["tool"]["flwr"]["app"]["config"]
    return config


def default_mapping() -> dict[str, Value]:
    """Return a copy of the defaults in ``[tool.flwr.app.config]``."""
    return dict(_app_config(default_file()) or {})

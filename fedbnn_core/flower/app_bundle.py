"""What `flwr run` is given: an app folder and a file of config overrides."""

import json
from collections.abc import Mapping
from pathlib import Path

from fedbnn_core.config import Value, default_file

__all__ = ["stage_app", "toml_value", "write_overrides"]


def stage_app(home: Path) -> Path:
    """Copy pyproject.toml into a folder whose name Flower accepts."""
    app = home / "fedbnn"
    app.mkdir()
    text = default_file().read_text(encoding="utf-8")
    # Flower refuses a pattern that matches nothing, and the README stays at home.
    (app / "pyproject.toml").write_text(text, encoding="utf-8")
    (app / "README.md").write_text("FedBNN\n", encoding="utf-8")
    return app


def write_overrides(path: Path, overrides: Mapping[str, Value]) -> Path:
    """Write config keys as a TOML file for ``flwr run -c``."""
    lines = [f"{key} = {toml_value(value)}\n" for key, value in overrides.items()]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def toml_value(value: Value) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    # JSON strings and numbers are valid TOML.
    return json.dumps(value)

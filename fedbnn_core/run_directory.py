"""The folder of one run: config, metrics, models and summary.

runs/<time>-<name>/config.json       resolved config, seed, versions
partition.npz     who holds which sample
metrics.jsonl     one line per round
progress.json     how far the round is that is under way
tensorboard/      event files
best.safetensors  the model of the best round, as evaluated
final.safetensors the state after the last round
summary.json      the result
"""

import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedbnn_core.aggregation import Arrays
from fedbnn_core.errors import RunError

__all__ = ["RunDirectory"]


class RunDirectory:
    """Create, write and read a run's folder; files are replaced atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, parent: Path, name: str) -> "RunDirectory":
        """Make ``parent/<time>-<name>``; raise `RunError` if that cannot be written."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        for attempt in range(1000):
            suffix = f"-{attempt + 1}" if attempt else ""
            path = parent / f"{stamp}-{name}{suffix}"
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise RunError(
                    f"cannot create a run directory in {parent}: {error.strerror}; "
                    "set output-dir to a folder you can write to"
                ) from error
            return cls(path)
        raise RunError(f"{parent} already holds 1000 runs named {stamp}-{name}")

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """Open an existing run; raise `RunError` if it is none."""
        if not (path / "config.json").is_file():
            raise RunError(
                f"{path} is no run directory (it has no config.json); "
                "give the folder that a run printed, such as runs/20260101-120000-name"
            )
        return cls(path)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write ``name`` as indented JSON."""
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        self._replace(name, text.encode())

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the run."""
        try:
            content: dict[str, Any] = json.loads(
                (self.path / name).read_text(encoding="utf-8")
            )
        except (OSError, ValueError) as error:
            raise RunError(f"cannot read {self.path / name}: {error}") from error
        return content

    def write_progress(
        self, *, round_number: int, clients: int, done: int, rejected: int
    ) -> None:
        """Say how far the current round is, for whoever watches.

        Not synced to disk: it is stale after a crash anyway, and a round of many
        clients writes it often.
        """
        content = {
            "round": round_number,
            "clients": clients,
            "done": done,
            "rejected": rejected,
        }
        temporary = self.path / "progress.json.tmp"
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(self.path / "progress.json")

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """Append one line to ``metrics.jsonl`` and flush it to disk."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read_metrics(self) -> list[dict[str, Any]]:
        """Read all complete lines of ``metrics.jsonl``."""
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return []
        text = path.read_text(encoding="utf-8")
        return [
            json.loads(line)
            for line in text.splitlines(keepends=True)
            if line.endswith("\n")
        ]

    def write_state(
        self, name: str, arrays: Arrays, metadata: Mapping[str, str]
    ) -> None:
        """Write arrays as safetensors: plain data, no code, never pickle."""
        from safetensors.numpy import save

        contiguous = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
        # ascontiguousarray turns scalars into vectors of one; keep their shape.
        shaped = {key: contiguous[key].reshape(arrays[key].shape) for key in arrays}
        self._replace(name, save(shaped, metadata=dict(metadata)))

    def read_state(self, name: str) -> Arrays:
        """Read a safetensors file of the run."""
        from safetensors.numpy import load_file

        path = self.path / name
        try:
            arrays: Arrays = load_file(path)
        except Exception as error:
            raise RunError(f"cannot read {path}: {error}") from error
        return arrays

    def _replace(self, name: str, content: bytes) -> None:
        handle, temporary = tempfile.mkstemp(dir=self.path, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(self.path / name)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

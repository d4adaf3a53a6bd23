"""The folder of one run: config, metrics, models and summary.

runs/<time>-<name>/config.json       resolved config, seed, versions
partition.npz     who holds which sample
metrics.jsonl     one line per round
privacy.jsonl     the clients asked in each attempt at a round of a private run
progress.json     how far the round is that is under way
tensorboard/      event files
best.safetensors  the model of the best round, as evaluated
final.safetensors the state after the last round
summary.json      the result
checkpoints/      what a resumed run goes on from
run.lock          held by the server that writes here
"""

import contextlib
import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from fedbnn_core.arrays import Arrays, from_safetensors, to_safetensors
from fedbnn_core.errors import RunError
from fedbnn_core.files import (
    append_durably,
    disk_errors,
    lock_open_file,
    remove_leftovers,
    replace_file,
    write_durably,
)

__all__ = ["RunDirectory", "require_output_folder"]

_METRICS = "metrics.jsonl"


class RunDirectory:
    """Create, write and read a run's folder; files are replaced atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        self._metrics_bytes = 0
        self._metrics_hash = hashlib.sha256()

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
                raise _cannot_create(parent, error) from error
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

    def lock(self) -> None:
        """Claim the folder for this process, until it ends in whatever way.

        Raises
        ------
        RunError
            Another process is writing to the run.
        """
        with disk_errors(self.path / "run.lock"):
            self._lock = (self.path / "run.lock").open("a+", encoding="utf-8")
        try:
            lock_open_file(self._lock.fileno(), wait=False)
        except OSError as error:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "unknown"
            raise RunError(
                f"process {owner} is still writing to {self.path}; "
                "wait for it or end it first"
            ) from error
        self._lock.truncate(0)
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()

    def release(self) -> None:
        """Give the folder free."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write ``name`` as indented JSON."""
        text = json.dumps(_finite(content), indent=2, ensure_ascii=False) + "\n"
        write_durably(self.path / name, text.encode())

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
        clients writes it often. A full disk is left for the checkpoint to report.
        """
        content = {
            "round": round_number,
            "clients": clients,
            "done": done,
            "rejected": rejected,
        }
        path = self.path / "progress.json"
        with contextlib.suppress(OSError):
            replace_file(path, json.dumps(content).encode(), durable=False)

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """Append one line to ``metrics.jsonl`` and flush it to disk.

        JSON has no NaN: figures that are not finite become null.
        """
        content = (json.dumps(_finite(line)) + "\n").encode()
        append_durably(self.path / _METRICS, content)
        self._metrics_bytes += len(content)
        self._metrics_hash.update(content)

    def metrics_position(self) -> dict[str, Any]:
        """Return size and SHA-256 of what this run has written to the metrics."""
        return {
            "bytes": self._metrics_bytes,
            "sha256": self._metrics_hash.hexdigest(),
        }

    def rewind_metrics(self, position: Mapping[str, Any], rounds_done: int) -> bool:
        """Cut the metrics back to a checkpoint's position; tell if they were intact.

        What follows the position comes from rounds that will be done again. Damaged
        metrics are left as they are, but for those rounds and an incomplete last line.
        """
        remove_leftovers(self.path)
        path = self.path / _METRICS
        content = path.read_bytes() if path.is_file() else b""
        kept = content[: position["bytes"]]
        intact: bool = hashlib.sha256(kept).hexdigest() == position["sha256"]
        if not intact:
            lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
            kept = b"".join(li for li in lines if not _is_later(li, rounds_done))
        write_durably(path, kept)
        self._metrics_bytes = len(kept)
        self._metrics_hash = hashlib.sha256(kept)
        return intact

    def read_metrics(self) -> list[dict[str, Any]]:
        """Read all complete lines of ``metrics.jsonl``."""
        path = self.path / _METRICS
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
        """Write arrays as safetensors."""
        write_durably(self.path / name, to_safetensors(arrays, dict(metadata)))

    def read_state(self, name: str) -> Arrays:
        """Read a safetensors file of the run."""
        path = self.path / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RunError(f"cannot read {path}: {error}") from error
        return from_safetensors(content, path=path)


def require_output_folder(parent: Path) -> None:
    """Raise `RunError` unless run directories can be made in a folder."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise _cannot_create(parent, error) from error


def _cannot_create(parent: Path, error: OSError) -> RunError:
    return RunError(
        f"cannot create a run directory in {parent}: {error.strerror}; "
        "set output-dir to a folder you can write to"
    )


def _is_later(line: bytes, rounds_done: int) -> bool:
    """Tell if a line of the metrics is that of a round after so many."""
    try:
        return bool(json.loads(line)["round"] > rounds_done)
    except (ValueError, TypeError, KeyError):
        return False


def _finite(content: Any) -> Any:
    """Return JSON content with None in place of NaN and infinities."""
    if isinstance(content, float) and not math.isfinite(content):
        return None
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return content

"""The folder of one run: config, metrics, models and summary.

runs/<time>-<name>/config.json       resolved config, seed, versions
partition.npz     who holds which sample
metrics.jsonl     one line per round
privacy.jsonl     the clients asked in each attempt at a round of a private run
progress.json     how far the round is that is under way
tensorboard/      event files
best.safetensors  the model of the best round, as evaluated
final.safetensors the state after the last round
model.fbnn        the best model, bit-packed, if it is a 1-bit one
summary.json      the result
checkpoints/      what a resumed run goes on from
run.lock          held by the server that writes here
"""

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from fedbnn_core.arrays import Arrays, from_safetensors, to_safetensors
from fedbnn_core.errors import RunError
from fedbnn_core.files import (
    disk_errors,
    lock_open_file,
    replace_file,
    write_durably,
)
from fedbnn_core.runs.metrics import RoundMetrics, Summary
from fedbnn_core.runs.metrics_file import (
    METRICS,
    MetricsReader,
    MetricsWriter,
    json_ready,
)

__all__ = ["PACKED_MODEL", "RunDirectory", "require_output_folder"]

PACKED_MODEL = "model.fbnn"
"""Name of the packed 1-bit model in a run directory."""
_SUMMARY = "summary.json"


class RunDirectory:
    """Create, write and read a run's folder; files are replaced atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        self.metrics = MetricsWriter(path / METRICS)

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
        text = json.dumps(json_ready(content), indent=2, ensure_ascii=False) + "\n"
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

    def read_metrics(self) -> list[RoundMetrics]:
        """Return the rounds of ``metrics.jsonl``; see `metrics_file` on damages."""
        reader = MetricsReader(self.path / METRICS)
        reader.poll(ended=self.is_complete())
        return reader.rounds

    def write_summary(self, summary: Summary) -> None:
        """Write ``summary.json``."""
        self.write_json(_SUMMARY, summary.to_json())

    def read_summary(self) -> Summary | None:
        """Return the run's result, or None if it has not come to an end yet."""
        if not (self.path / _SUMMARY).is_file():
            return None
        return Summary.from_json(self.read_json(_SUMMARY))

    def is_complete(self) -> bool:
        """Return whether the run has done its last round."""
        summary = self.read_summary()
        return summary is not None and not summary.stopped

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

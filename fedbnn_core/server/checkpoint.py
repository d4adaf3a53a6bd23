"""Checkpoints of a run: whole or absent, checksummed, the last few kept.

A checkpoint is a small JSON file, ``checkpoints/round-000012.json``, that names its
safetensors files with size and SHA-256 and carries a checksum of itself. It is
written last: a crash while writing leaves the one before. Arrays that did not change
(the best model, the weights of the round before) are shared between checkpoints.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbnn_core.arrays import Arrays, from_safetensors, to_safetensors
from fedbnn_core.errors import RunError
from fedbnn_core.files import make_folder_durably, remove_leftovers, write_durably

__all__ = ["Checkpoint", "CheckpointFolder"]

_FORMAT = 1
_PARTS = ("weights", "previous", "best", "method")


@dataclass(frozen=True)
class Checkpoint:
    """Everything a run needs to go on after a round."""

    round: int
    """Rounds done."""
    weights: Arrays
    """The state that the next round's clients get."""
    previous: Arrays
    """The state that this round's clients got; empty before the first round."""
    best: Arrays
    """The best model so far; empty before the first evaluation."""
    best_round: int
    """The round of ``best``."""
    method: Arrays
    """What the method itself keeps between rounds."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Scalars, seeds, quarantine and the position in the metrics, as JSON."""


class CheckpointFolder:
    """Save and load the checkpoints of one run.

    Parameters
    ----------
    path : the folder; created by the first `save`.
    keep : how many checkpoints stay.
    best_copy : another file with the best model; it takes the place of a damaged one.
    """

    def __init__(self, path: Path, *, keep: int, best_copy: Path | None = None) -> None:
        self.path = path
        self._keep = keep
        self._best_copy = best_copy
        self._written: dict[str, dict[str, Any]] = {}

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then remove the oldest beyond the number kept.

        Raises
        ------
        RunError
            The disk is full or the folder cannot be written.
        """
        make_folder_durably(self.path)
        parts = {
            "weights": (f"weights-{checkpoint.round:06d}", checkpoint.weights),
            "previous": (f"weights-{checkpoint.round - 1:06d}", checkpoint.previous),
            "best": (f"best-{checkpoint.best_round:06d}", checkpoint.best),
            "method": (f"method-{checkpoint.round:06d}", checkpoint.method),
        }
        files = {
            part: self._write_arrays(f"{name}.safetensors", arrays)
            for part, (name, arrays) in parts.items()
            if arrays
        }
        content = {
            "format": _FORMAT,
            "round": checkpoint.round,
            "best_round": checkpoint.best_round,
            "facts": checkpoint.facts,
            "files": files,
        }
        write_durably(
            self.path / _manifest_name(checkpoint.round),
            json.dumps(
                content | {"checksum": _checksum(content)}, indent=1, allow_nan=False
            ).encode(),
        )
        self._prune()

    def _write_arrays(self, name: str, arrays: Arrays) -> dict[str, Any]:
        """Write a file unless this process wrote it before; return its entry."""
        if name not in self._written:
            content = to_safetensors(arrays)
            write_durably(self.path / name, content)
            self._written[name] = {
                "name": name,
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
            }
        return self._written[name]

    def _prune(self) -> None:
        manifests = self._manifests()
        # A manifest goes before its files: what is left is complete at any moment.
        for path in manifests[self._keep :]:
            path.unlink(missing_ok=True)
        used = set()
        for path in manifests[: self._keep]:
            try:
                content = json.loads(path.read_bytes())
                used |= {entry["name"] for entry in content["files"].values()}
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # Damaged; `load_latest` reports it.
        for path in self.path.glob("*.safetensors"):
            if path.name not in used:
                path.unlink(missing_ok=True)
                self._written.pop(path.name, None)

    def _manifests(self) -> list[Path]:
        """Return the checkpoints' JSON files, newest first."""
        return sorted(self.path.glob("round-*.json"), reverse=True)

    def load_latest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest usable checkpoint, and all damages up to it.

        Newer ones that cannot be used are removed, so that the run can write them
        again. Without any checkpoint the answer is None.

        Raises
        ------
        RunError
            There are checkpoints, and all are damaged.
        """
        if not self.path.is_dir():
            return None, []
        remove_leftovers(self.path)
        checkpoint, damages, useless = self._newest()
        for path in useless:
            path.unlink(missing_ok=True)
        return checkpoint, damages

    def require_usable(self) -> list[str]:
        """Return the damages that `load_latest` would tell, without removing any.

        Raises
        ------
        RunError
            There are checkpoints, and all are damaged.
        """
        return self._newest()[1]

    def _newest(self) -> tuple[Checkpoint | None, list[str], list[Path]]:
        """Return the newest usable checkpoint, the damages and the useless ones."""
        damages: list[str] = []
        manifests = self._manifests()
        for number, path in enumerate(manifests):
            # Only the files of the checkpoint that is used count as written.
            self._written.clear()
            try:
                checkpoint, repaired = self._load(path)
            except RunError as error:
                damages.append(str(error))
                continue
            return checkpoint, damages + repaired, manifests[:number]
        if damages:
            raise RunError(
                f"all {len(damages)} checkpoints in {self.path} are damaged: "
                f"{'; '.join(damages)}. Restore one from a backup, or start a new run"
            )
        return None, [], []

    def _load(self, path: Path) -> tuple[Checkpoint, list[str]]:
        """Return a checkpoint and the damages that do not matter."""
        try:
            content = json.loads(path.read_bytes())
            checksum = content.pop("checksum")
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise RunError(f"{path.name} is damaged: {error!r}") from error
        if checksum != _checksum(content):
            raise RunError(f"{path.name} is damaged: its checksum does not match")
        if content["format"] != _FORMAT:
            raise RunError(
                f"{path.name} has format {content['format']}, this version reads "
                f"{_FORMAT}; use the version of FedBNN that wrote it"
            )
        damages: list[str] = []
        parts: dict[str, Arrays] = {part: {} for part in _PARTS}
        for part, entry in content["files"].items():
            try:
                parts[part] = self._read_arrays(path.name, entry)
            except RunError as error:
                if part == "best" and self._best_copy is not None:
                    parts[part] = self._recover_best(entry, self._best_copy, error)
                    damages.append(f"{error}; it was restored from {self._best_copy}")
                elif part == "previous":
                    # w_t is for those who look at it: the next round starts from
                    # the weights.
                    damages.append(f"{error}; it is not needed to go on")
                else:
                    raise
        checkpoint = Checkpoint(
            round=content["round"],
            best_round=content["best_round"],
            facts=content["facts"],
            **parts,
        )
        return checkpoint, damages

    def _recover_best(
        self, entry: dict[str, Any], copy: Path, damage: RunError
    ) -> Arrays:
        """Write the best model once more if the copy holds the very same arrays."""
        try:
            arrays = from_safetensors(copy.read_bytes(), path=copy)
        except (OSError, RunError):
            raise damage from None
        content = to_safetensors(arrays)
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise damage
        write_durably(self.path / entry["name"], content)
        self._written[entry["name"]] = entry
        return arrays

    def _read_arrays(self, manifest: str, entry: dict[str, Any]) -> Arrays:
        path = self.path / entry["name"]
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RunError(f"{manifest} is incomplete: {error}") from error
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise RunError(
                f"{path.name} of {manifest} is damaged: {len(content)} of "
                f"{entry['bytes']} bytes, and the SHA-256 does not match"
            )
        arrays = from_safetensors(content, path=path)
        self._written[entry["name"]] = entry
        return arrays


def _manifest_name(rounds_done: int) -> str:
    return f"round-{rounds_done:06d}.json"


def _checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()

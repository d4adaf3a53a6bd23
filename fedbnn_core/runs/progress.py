"""Follow a run from outside, by the files that its server writes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["RECENT_ROUNDS", "RunFollower", "seconds_left"]

RECENT_ROUNDS = 10
"""The rounds whose length tells how long the next ones take."""


class RunFollower:
    """Read what a run directory gains, a little at a time.

    Attributes
    ----------
    lines : list of dict
        All complete lines of ``metrics.jsonl`` so far.
    generation : int
        Counts how often the file was rewound, as a resumed run does; rounds already
        seen may then have changed.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lines: list[dict[str, Any]] = []
        self.generation = 0
        self._inode = 0
        self._offset = 0

    def poll(self) -> bool:
        """Read new lines; return whether there were any, or the file was rewound."""
        path = self.directory / "metrics.jsonl"
        try:
            with path.open("rb") as file:
                size, inode = path.stat().st_size, path.stat().st_ino
                rewound = inode != self._inode or size < self._offset
                if rewound:
                    self.lines, self._inode, self._offset = [], inode, 0
                    self.generation += 1
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return False
        complete = content[: content.rfind(b"\n") + 1]
        self._offset += len(complete)
        for text in complete.splitlines():
            try:
                self.lines.append(json.loads(text))
            except ValueError:
                # A damaged line; the run's own checks speak about it.
                continue
        return bool(complete) or rewound

    def current_round(self) -> dict[str, int] | None:
        """Return round, clients asked, replies done and rejected of the round now."""
        try:
            text = (self.directory / "progress.json").read_text(encoding="utf-8")
            progress: dict[str, int] = json.loads(text)
        except (OSError, ValueError):
            return None
        if self.lines and progress.get("round", 0) <= self.lines[-1]["round"]:
            return None
        return progress


def seconds_left(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Estimate the time to the end from the ten newest rounds."""
    recent = [sum(line.get("seconds", {}).values()) for line in lines[-RECENT_ROUNDS:]]
    if not recent:
        return None
    remaining = lines[-1]["num_rounds"] - lines[-1]["round"]
    return float(sum(recent) / len(recent) * remaining)

"""Follow a run from outside, by the files that its server writes."""

import json
from collections.abc import Sequence
from pathlib import Path

from fedbnn_core.runs.metrics import RoundMetrics
from fedbnn_core.runs.metrics_file import METRICS, MetricsReader

__all__ = ["RECENT_ROUNDS", "RunFollower", "seconds_left"]

RECENT_ROUNDS = 10
"""The rounds whose length tells how long the next ones take."""


class RunFollower:
    """Read what a run directory gains, a little at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._reader = MetricsReader(directory / METRICS)

    @property
    def rounds(self) -> list[RoundMetrics]:
        """The metrics of all rounds so far."""
        return self._reader.rounds

    @property
    def generation(self) -> int:
        """How often the metrics were begun anew, as a resumed run does."""
        return self._reader.generation

    def poll(self) -> bool:
        """Read new lines; return whether there were any, or the file was rewound."""
        return self._reader.poll()

    def current_round(self) -> dict[str, int] | None:
        """Return round, clients asked, replies done and rejected of the round now."""
        try:
            text = (self.directory / "progress.json").read_text(encoding="utf-8")
            progress: dict[str, int] = json.loads(text)
        except (OSError, ValueError):
            return None
        if self.rounds and progress.get("round", 0) <= self.rounds[-1].round:
            return None
        return progress


def seconds_left(rounds: Sequence[RoundMetrics]) -> float | None:
    """Estimate the time to the end from the ten newest rounds."""
    recent = [metrics.total_seconds for metrics in rounds[-RECENT_ROUNDS:]]
    if not recent:
        return None
    remaining = rounds[-1].num_rounds - rounds[-1].round
    return sum(recent) / len(recent) * remaining

"""A run directory as the live page asks for it: whole once, then round by round."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedbnn_core.reporting.report import report_payload, rounds_payload
from fedbnn_core.runs.directory import RunDirectory
from fedbnn_core.runs.progress import RunFollower, seconds_left

__all__ = ["LiveRun"]


class LiveRun:
    """Follow one run, with others to compare it with.

    Parameters
    ----------
    paths : run directories; the first is followed.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = [RunDirectory.open(path).path for path in paths]
        self._follower = RunFollower(self._paths[0])
        # Requests are answered by several threads.
        self._lock = threading.Lock()
        self._payload: dict[str, Any] = {}
        self._payload_state: tuple[Any, ...] = ()

    @property
    def directory(self) -> Path:
        """Return the run directory that is followed."""
        return self._paths[0]

    def payload(self) -> dict[str, Any]:
        """Return all that the page shows.

        The costly parts, such as the model's mistakes, are made again only when the
        run has begun anew or has finished.
        """
        with self._lock:
            self._follower.poll()
            state = (self._follower.generation, self._finished())
            if state != self._payload_state:
                self._payload = report_payload(self._paths)
                self._payload_state = state
            run, *others = self._payload["runs"]
            fresh = run | {"rounds": rounds_payload(self._follower.rounds)}
            return {
                **self._payload,
                "runs": [fresh, *others],
                "generation": self._follower.generation,
            }

    def news(self, after: int, generation: int) -> dict[str, Any]:
        """Return the rounds that follow ``after``.

        Parameters
        ----------
        after : the last round that the page has.
        generation : as the page was told; another one means that rounds which the
            page has were made anew, and it should ask for everything.
        """
        with self._lock:
            self._follower.poll()
            rounds = self._follower.rounds
            stale = generation != self._follower.generation
            return {
                "generation": self._follower.generation,
                "stale": stale,
                "finished": self._finished() is not None,
                "now": self._follower.current_round(),
                "seconds_left": seconds_left(rounds),
                "rounds": rounds_payload(
                    [] if stale else [m for m in rounds if m.round > after]
                ),
            }

    def _finished(self) -> int | None:
        """Return when the summary was written, in ns, or None before."""
        try:
            return (self.directory / "summary.json").stat().st_mtime_ns
        except OSError:
            return None

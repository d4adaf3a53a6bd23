"""The trackers of one run, none of which may ever stop it."""

import importlib
import importlib.util
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fedbnn_core.errors import ConfigError
from fedbnn_core.runs.metrics import RoundMetrics, Summary

__all__ = ["RunTrackers", "Tracker"]

_log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Somewhere to send a run's metrics."""

    def round_finished(self, metrics: RoundMetrics) -> None:
        """Take the metrics of a round."""

    def run_finished(self, summary: Summary) -> None:
        """Take the run's result, if it has one, and close."""


class RunTrackers:
    """Pass a run's metrics on to TensorBoard and the configured tracker.

    Trackers open with the first round they see, so a resumed run continues its
    curves. One that fails is dropped with a warning; training goes on.

    Parameters
    ----------
    directory : the run directory.
    description : content of ``config.json``.

    Raises
    ------
    ConfigError
        The configured tracker is not installed.
    """

    def __init__(self, directory: Path, description: Mapping[str, Any]) -> None:
        self._directory = directory
        self._description = description
        names = ["tensorboard"] if _installed("tensorboard") else []
        wanted = description["config"].get("tracker", "none")
        if wanted != "none":
            if not _installed(wanted):
                raise ConfigError(
                    f"tracker = {wanted!r} needs a package that is not installed here; "
                    f"pip install {wanted}, or set tracker = 'none'"
                )
            names.append(wanted)
        self._unopened = names
        self._open: dict[str, Tracker] = {}

    def round_finished(self, metrics: RoundMetrics) -> None:
        """Pass on the metrics of a round."""
        for name in self._unopened:
            self._guard(name, partial(self._start, name, metrics.round))
        self._unopened = []
        for name, tracker in list(self._open.items()):
            self._guard(name, partial(tracker.round_finished, metrics))

    def run_finished(self, summary: Summary) -> None:
        """Pass on the summary and close the trackers."""
        for name, tracker in list(self._open.items()):
            self._guard(name, partial(tracker.run_finished, summary))
        self._open.clear()

    def _start(self, name: str, first_round: int) -> None:
        module = importlib.import_module(f"fedbnn_core.reporting.tracking.{name}")
        tracker: Tracker = module.TRACKER(
            self._directory, self._description, first_round
        )
        self._open[name] = tracker

    def _guard(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self._open.pop(name, None)
            _log.warning("%s gets no more metrics of this run: %s", name, error)


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None

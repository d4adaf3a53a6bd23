"""Weights & Biases, with ``tracker = "wandb"``.

Account, project and offline mode come from W&B's own environment variables
(WANDB_API_KEY, WANDB_PROJECT, WANDB_MODE).
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbnn_core.reporting.confusion import confusion_pixels
from fedbnn_core.reporting.tracking.scalars import round_scalars, summary_scalars
from fedbnn_core.runs.metrics import RoundMetrics, Summary

__all__ = ["TRACKER", "WandbTracker"]


class WandbTracker:
    """One W&B run per run directory; a resumed run continues it."""

    def __init__(
        self, directory: Path, description: Mapping[str, Any], first_round: int
    ) -> None:
        import wandb

        self._wandb = wandb
        self._class_names = description["class_names"]
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedbnn"),
            id=directory.name,
            name=directory.name,
            dir=str(directory),
            config=dict(description["config"]),
            resume="allow",
        )

    def round_finished(self, metrics: RoundMetrics) -> None:
        """Log the scalars of a round."""
        self._run.log(round_scalars(metrics), step=metrics.round)

    def run_finished(self, summary: Summary) -> None:
        """Log the result and close the run."""
        self._run.summary.update(summary_scalars(summary))
        if summary.test_confusion:
            picture = confusion_pixels(summary.test_confusion, self._class_names)
            self._run.log({"test/confusion": self._wandb.Image(picture)})
        self._run.finish()


TRACKER = WandbTracker

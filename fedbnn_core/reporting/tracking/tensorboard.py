"""TensorBoard event files in the run directory's ``tensorboard`` folder.

They are written by torch's own writer on top of the tensorboard package, which a run
pays with a tenth of a second at its first round.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbnn_core.reporting.confusion import confusion_pixels
from fedbnn_core.reporting.tracking.scalars import round_scalars, summary_scalars
from fedbnn_core.runs.metrics import RoundMetrics, Summary

__all__ = ["TRACKER", "TensorBoardTracker"]

FOLDER = "tensorboard"


class TensorBoardTracker:
    """Scalars of every round; at the end the confusion matrix of the test half.

    Parameters
    ----------
    directory : the run directory.
    description : content of ``config.json``.
    first_round : rounds from here on that an earlier start wrote are hidden.
    """

    def __init__(
        self, directory: Path, description: Mapping[str, Any], first_round: int
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._class_names = description["class_names"]
        self._writer = SummaryWriter(
            str(directory / FOLDER),
            purge_step=first_round if first_round > 1 else None,
        )
        rows = "".join(f"| {k} | {v} |\n" for k, v in description["config"].items())
        self._writer.add_text("config", f"| key | value |\n|---|---|\n{rows}", 0)

    def round_finished(self, metrics: RoundMetrics) -> None:
        """Write the scalars and flush, so that an open TensorBoard shows them."""
        for name, value in round_scalars(metrics).items():
            self._writer.add_scalar(name, value, metrics.round)
        self._writer.flush()

    def run_finished(self, summary: Summary) -> None:
        """Write the test metrics and the confusion matrix."""
        step = summary.best_round
        for name, value in summary_scalars(summary).items():
            self._writer.add_scalar(name, value, step)
        if summary.test_confusion:
            picture = confusion_pixels(summary.test_confusion, self._class_names)
            self._writer.add_image("test/confusion", picture, step, dataformats="HWC")
        self._writer.close()


TRACKER = TensorBoardTracker

"""MLflow, with ``tracker = "mlflow"``.

The server is the one of MLFLOW_TRACKING_URI; without it MLflow's default store below
the working directory.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbnn_core.reporting.confusion import confusion_pixels
from fedbnn_core.reporting.tracking.scalars import round_scalars, summary_scalars
from fedbnn_core.runs.metrics import RoundMetrics, Summary

__all__ = ["TRACKER", "MlflowTracker"]

_ID_FILE = "mlflow-run-id.txt"


class MlflowTracker:
    """One MLflow run per run directory; a resumed run continues it."""

    def __init__(
        self, directory: Path, description: Mapping[str, Any], first_round: int
    ) -> None:
        from mlflow import MlflowClient

        self._class_names = description["class_names"]
        self._client = MlflowClient()
        id_file = directory / _ID_FILE
        if first_round > 1 and id_file.is_file():
            self._run_id = id_file.read_text(encoding="utf-8").strip()
            self._client.update_run(self._run_id, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedbnn")
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(name)
        )
        run = self._client.create_run(experiment_id, run_name=directory.name)
        self._run_id = run.info.run_id
        id_file.write_text(f"{self._run_id}\n", encoding="utf-8")
        for key, value in description["config"].items():
            self._client.log_param(self._run_id, key, value)

    def round_finished(self, metrics: RoundMetrics) -> None:
        """Log the scalars of a round."""
        for name, value in round_scalars(metrics).items():
            self._client.log_metric(self._run_id, name, value, step=metrics.round)

    def run_finished(self, summary: Summary) -> None:
        """Log the result and close the run."""
        for name, value in summary_scalars(summary).items():
            self._client.log_metric(self._run_id, name, value, step=summary.best_round)
        if summary.test_confusion:
            picture = confusion_pixels(summary.test_confusion, self._class_names)
            self._client.log_image(self._run_id, picture, "test-confusion.png")
        self._client.set_terminated(self._run_id)


TRACKER = MlflowTracker

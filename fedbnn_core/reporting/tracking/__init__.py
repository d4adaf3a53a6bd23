"""Send a run's metrics to TensorBoard and, if asked for, to W&B or MLflow."""

from fedbnn_core.reporting.tracking.trackers import RunTrackers, Tracker

__all__ = ["RunTrackers", "Tracker"]

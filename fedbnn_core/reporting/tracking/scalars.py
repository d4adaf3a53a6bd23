"""The scalars of a round under the names that trackers show."""

import math
from collections.abc import Mapping
from typing import Any

from fedbnn_core.runs.metrics import RoundMetrics, Summary

__all__ = ["round_scalars", "summary_scalars"]


def round_scalars(metrics: RoundMetrics) -> dict[str, float]:
    """Return the metrics of a round as ``group/name`` to value.

    Per layer these are the coefficients of the mixed weight w~: 1-alpha of w,
    alpha*beta of rot(w), alpha*(1-beta) of w_server, then lambda and the angular bias
    cos(phi). The clock is t and k = max(1/t, 1). What a round lacks or holds as null
    or NaN is excluded.
    """
    scored = {
        **metrics.scores,
        "best_val_accuracy": metrics.best_val_accuracy,
        "train_loss": metrics.train_loss,
    }
    figures: dict[str, Any] = {
        f"{kind}/{key.replace(f'_{kind}', '')}": value
        for kind in ("accuracy", "loss")
        for key, value in scored.items()
        if f"_{kind}" in key
    }
    figures["schedule/lr"] = metrics.lr
    t = metrics.t
    if t:
        figures |= {"schedule/t": t, "schedule/k": max(1.0 / t, 1.0)}
    for name, scalars in metrics.layers.items():
        figures |= {f"{kind}/{name}": v for kind, v in _layer_scalars(scalars).items()}
    figures |= {"bytes/up": metrics.bytes_up, "bytes/down": metrics.bytes_down}
    figures |= {"bits/up": metrics.bits_up, "bits/down": metrics.bits_down}
    for part, seconds in metrics.seconds.items():
        figures[f"seconds/{part}"] = seconds
    figures["clients/accepted"] = len(metrics.clients)
    figures["clients/rejected"] = len(metrics.rejected)
    figures["clients/missing"] = len(metrics.missing)
    figures["clients/update_norm"] = metrics.update_norm
    figures["privacy/epsilon"] = metrics.epsilon
    return _finite(figures)


def summary_scalars(summary: Summary) -> dict[str, float]:
    """Return what belongs on a chart of a run's summary."""
    return _finite(
        {"test/accuracy": summary.test_accuracy, "test/loss": summary.test_loss}
    )


def _layer_scalars(scalars: Mapping[str, float | None]) -> dict[str, float | None]:
    figures = {k: v for k, v in scalars.items() if k not in ("alpha", "beta")}
    alpha, beta = scalars.get("alpha"), scalars.get("beta")
    if alpha is not None and beta is not None:
        figures |= {
            "1-alpha": 1 - alpha,
            "alpha_beta": alpha * beta,
            "alpha_1-beta": alpha * (1 - beta),
        }
    return figures


def _finite(figures: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }

"""The scalars of a round under the names that trackers show."""

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["round_scalars", "summary_scalars"]


def round_scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a metrics line as ``group/name`` to value.

    Per layer these are the coefficients of the mixed weight: 1-alpha of w,
    alpha*beta of rot(w), alpha*(1-beta) of w_server, then lambda and the angular bias
    cos(phi). The clock is t and k = max(1/t, 1). What a line lacks or holds as null
    or NaN is left out.
    """
    figures: dict[str, Any] = {
        f"{kind}/{key.replace(f'_{kind}', '')}": value
        for kind in ("accuracy", "loss")
        for key, value in line.items()
        if f"_{kind}" in key
    }
    figures["schedule/lr"] = line.get("lr")
    t = line.get("t")
    if t:
        figures |= {"schedule/t": t, "schedule/k": max(1.0 / t, 1.0)}
    for name, scalars in line.get("layers", {}).items():
        figures |= {f"{kind}/{name}": v for kind, v in _layer_scalars(scalars).items()}
    for direction in ("up", "down"):
        figures[f"bytes/{direction}"] = line.get(f"bytes_{direction}")
    for part, seconds in line.get("seconds", {}).items():
        figures[f"seconds/{part}"] = seconds
    figures["clients/accepted"] = len(line.get("clients", ()))
    figures["clients/rejected"] = len(line.get("rejected", ()))
    figures["clients/missing"] = len(line.get("missing", ()))
    figures["clients/update_norm"] = line.get("update_norm")
    figures["privacy/epsilon"] = line.get("epsilon")
    return _finite(figures)


def summary_scalars(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a run's summary that belong on a chart."""
    names = ("test_accuracy", "test_loss")
    return _finite(
        {f"test/{name.removeprefix('test_')}": summary.get(name) for name in names}
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

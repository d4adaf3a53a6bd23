"""What a report shows, gathered from run directories as one JSON-ready mapping.

Rounds are stored by column: a run of 1,500 rounds and 24 layers has 144,000 layer
figures, and their names must not be repeated with each.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbnn_core import __version__
from fedbnn_core.config import default_mapping
from fedbnn_core.errors import RunError
from fedbnn_core.reporting.report.held_data import HeldData, held_data
from fedbnn_core.runs.directory import PACKED_MODEL, RunDirectory
from fedbnn_core.runs.metrics import FailedAttempt, RoundMetrics

__all__ = ["report_payload", "rounds_payload", "run_payload"]

BENCHMARK = "bench.json"
"""Name of a speed measurement (``fedbnn bench --json``) in a run directory."""

_SCALARS = (
    "train_loss",
    "lr",
    "t",
    "bytes_up",
    "bytes_down",
    "bytes_up_nominal",
    "bytes_down_nominal",
    "bits_up",
    "bits_down",
    "update_norm",
    "epsilon",
)
_LAYER_DECIMALS = 5


def report_payload(paths: Sequence[Path]) -> dict[str, Any]:
    """Return what the page shows: the first run in full, the others to compare.

    Raises
    ------
    RunError
        No path was given, or one is no run directory or cannot be read.
    """
    if not paths:
        raise RunError("name at least one run directory")
    directories = [RunDirectory.open(path) for path in paths]
    runs = [run_payload(directories[0], detail=True)]
    runs += [run_payload(directory) for directory in directories[1:]]
    for run, label in zip(runs, _labels(runs), strict=True):
        run["label"] = label
    return {"version": __version__, "runs": runs}


def run_payload(directory: RunDirectory, *, detail: bool = False) -> dict[str, Any]:
    """Return one run; ``detail`` adds layers, data, mistakes and speed."""
    description = directory.read_json("config.json")
    config: dict[str, Any] = description["config"]
    summary = read_summary(directory)
    title, binary = _method_facts(description)
    run: dict[str, Any] = {
        "name": directory.path.name,
        "method_name": title if binary else f"{title} (float)",
        "binary": binary,
        "config": config,
        "num_rounds": config["num-server-rounds"],
        "num_clients": description.get("num_partitions"),
        "summary": summary,
        "rounds": rounds_payload(directory.read_metrics(), layers=detail),
        "packed_bytes": _size(directory.path / PACKED_MODEL),
    }
    if not detail:
        return run
    data = held_data(directory, description, with_mistakes=summary is not None)
    return run | {
        "class_names": description["class_names"],
        "versions": {
            key: description[key]
            for key in ("fedbnn_version", "torch_version", "device")
            if key in description
        },
        "changed": _changed(config),
        "benchmark": _benchmark(directory, config["model"]),
        **_data_payload(data),
    }


def read_summary(directory: RunDirectory) -> dict[str, Any] | None:
    """Return the summary of a finished run, without the paths of its machine."""
    if not (directory.path / "summary.json").is_file():
        return None
    summary = directory.read_json("summary.json")
    summary.pop("directory", None)
    return {key: _clean(value) for key, value in summary.items()}


def rounds_payload(
    rounds: Sequence[RoundMetrics], *, layers: bool = True
) -> dict[str, Any]:
    """Return the metrics of rounds by column; what a round lacks is null.

    Returns
    -------
    dict
        ``round``: numbers; ``columns``: name to values; ``clients``, ``missing``: ids
        per round; ``rejected``: [round, client, reason]; with ``layers`` also
        ``layer_names`` and ``layers``: figure to one list of values per layer.
    """
    columns: dict[str, list[Any]] = {
        name: [_clean(one.scores.get(name)) for one in rounds]
        for name in sorted({name for one in rounds for name in one.scores})
    }
    for name in _SCALARS:
        columns[name] = [_clean(getattr(one, name)) for one in rounds]
    parts = {part for one in rounds for part in one.seconds}
    for part in sorted(parts, reverse=True):
        columns[f"seconds_{part}"] = [_clean(one.seconds.get(part)) for one in rounds]
    result: dict[str, Any] = {
        "round": [one.round for one in rounds],
        "columns": columns,
        "clients": [list(one.clients) for one in rounds],
        "missing": [
            sorted(client for attempt in _attempts(one) for client in attempt.missing)
            for one in rounds
        ],
        "rejected": [
            [one.round, entry.client, entry.reason]
            for one in rounds
            for attempt in _attempts(one)
            for entry in attempt.rejected
        ],
    }
    if layers:
        names = list(dict.fromkeys(name for one in rounds for name in one.layers))
        figures = dict.fromkeys(
            figure
            for one in rounds
            for layer in one.layers.values()
            for figure in layer
        )
        result["layer_names"] = names
        result["layers"] = {
            figure: [
                [_layer_figure(one, name, figure) for one in rounds] for name in names
            ]
            for figure in figures
        }
    return result


def _attempts(metrics: RoundMetrics) -> list[FailedAttempt | RoundMetrics]:
    """Return the failed attempts at a round, then the one that counted."""
    return [*metrics.failed_attempts, metrics]


def _layer_figure(metrics: RoundMetrics, name: str, figure: str) -> float | None:
    value = metrics.layers.get(name, {}).get(figure)
    if value is None or not math.isfinite(value):
        return None
    return round(float(value), _LAYER_DECIMALS)


def _clean(value: Any) -> Any:
    """Return numbers with six digits; NaN and infinity, which JSON lacks, as null."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _labels(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name each run by its method and by what else sets it apart from the others."""
    configs = [run["config"] for run in runs]
    ignored = ("method", "output-dir", "run-name", "device", "client-threads")
    keys = dict.fromkeys(key for config in configs for key in config)
    telling = [
        key
        for key in keys
        if key not in ignored and len({repr(c.get(key)) for c in configs}) > 1
    ]
    labels: list[str] = []
    for run in runs:
        parts = [run["method_name"]]
        parts += [f"{key} {run['config'].get(key)}" for key in telling[:3]]
        label = ", ".join(parts)
        twins = sum(
            known == label or known.startswith(f"{label} #") for known in labels
        )
        labels.append(f"{label} #{twins + 1}" if twins else label)
    return labels


def _method_facts(description: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the method's title and whether its model is binary."""
    if "method_title" in description:
        return str(description["method_title"]), bool(description["binary"])
    # Runs of an earlier version did not store them.
    from fedbnn_core.methods import method_class

    method = method_class(description["config"]["method"])
    return method.title, method.binary


def _changed(config: Mapping[str, Any]) -> list[str]:
    """Return the keys whose value is not the default."""
    defaults = default_mapping() | {"output-dir": config.get("output-dir")}
    return [key for key, value in config.items() if defaults.get(key) != value]


def _benchmark(directory: RunDirectory, model: str) -> dict[str, Any] | None:
    """Return the row of a speed measurement for one image and one thread."""
    if not (directory.path / BENCHMARK).is_file():
        return None
    content: Any = directory.read_json(BENCHMARK)
    rows = content if isinstance(content, list) else content.get("rows", [content])
    for row in rows:
        fits = row.get("model", model) == model
        if fits and row.get("batch") == 1 and row.get("threads") == 1:
            return {key: _clean(value) for key, value in row.items()}
    return None


def _data_payload(data: HeldData) -> dict[str, Any]:
    return {
        "partition": {
            "clients": data.clients,
            "sizes": data.sizes,
            "counts": data.counts,
            "total_clients": data.total_clients,
        },
        "mistakes": data.mistakes,
        "notes": data.notes,
    }


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None

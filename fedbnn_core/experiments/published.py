"""Keep what a finished run found, in a few hundred KB that anybody may have.

A published run is a run directory without weights in float, checkpoints and the names
of a machine's folders: config, metrics, summary and the 1-bit model. The tables, curves
and comparisons read it like any other.
"""

from pathlib import Path

from fedbnn_core.errors import RunError
from fedbnn_core.experiments.runs import PlannedRun
from fedbnn_core.files import disk_errors, write_durably
from fedbnn_core.runs.directory import PACKED_MODEL, RunDirectory
from fedbnn_core.runs.metrics_file import METRICS

__all__ = ["publish"]

_PLACES = ("output-dir", "data-dir", "resume")


def publish(planned: PlannedRun, folder: Path) -> Path:
    """Copy a finished run to ``folder/<recipe>/<scale>/<row>-seed<n>``; return that.

    What an earlier run of the same plan left there is replaced.

    Raises
    ------
    RunError
        The run has not ended, or a file cannot be read or written.
    """
    run = planned.finished()
    if run is None:
        raise RunError(
            f"{planned.row.name} of {planned.recipe.name} has not ended at "
            f"{planned.scale} scale with seed {planned.seed}; run it first"
        )
    name = f"{planned.row.name}-seed{planned.seed}"
    path = folder / planned.recipe.name / planned.scale / name
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        config = run.read_json("config.json")
        for key in _PLACES:
            config["config"].pop(key, None)
        copy = RunDirectory(path)
        copy.write_json("config.json", config)
        copy.write_json(
            "summary.json", run.read_json("summary.json") | {"directory": ""}
        )
        for file in (METRICS, PACKED_MODEL):
            if (run.path / file).is_file():
                write_durably(path / file, (run.path / file).read_bytes())
            else:
                (path / file).unlink(missing_ok=True)
    return path

"""Plan a recipe's runs and find which of them are done.

Nothing but the run directories is kept: a planned run is done if some directory below
the experiment's folder has its config and a summary. So a stopped experiment goes on
where it was, and a changed recipe is run anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbnn_core.config import CHANGEABLE, RunConfig, Value
from fedbnn_core.errors import ConfigError, RunError
from fedbnn_core.experiments.recipes import Recipe, Row
from fedbnn_core.runs.directory import RunDirectory

__all__ = ["PlannedRun", "identity", "is_finished", "plan", "stored_identity"]

# Keys that say how a run is carried out and where it is told of, not what it computes.
_NOT_THE_RESULT = frozenset(
    {*CHANGEABLE, "output-dir", "resume", "run-name", "tracker"}
)
_SET_BY_THE_EXPERIMENT = {
    "method": "--method",
    "num-partitions": "a recipe with another number of clients",
    "output-dir": "--runs",
    "resume": "the same command, which goes on by itself",
    "run-name": "--runs",
    "seed": "--seeds",
}


@dataclass(frozen=True)
class PlannedRun:
    """One run of a recipe."""

    recipe: Recipe
    row: Row
    scale: str
    seed: int
    folder: Path
    """Where its run directory is or will be."""
    overrides: Mapping[str, Value]
    """Further keys, given by the user."""

    @property
    def clients(self) -> int:
        """Return the number of simulated clients."""
        return self.recipe.scale(self.scale).clients

    @property
    def config(self) -> dict[str, Value]:
        """Return the config keys of the run that differ from the defaults."""
        return {
            **self.recipe.run_config(self.row, self.scale, self.seed),
            **self.overrides,
            "output-dir": str(self.folder),
            "run-name": f"{self.row.name}-seed{self.seed}",
        }

    def finished(self) -> RunDirectory | None:
        """Return the newest directory with this run's config and a result."""
        return self._find(finished=True)

    def interrupted(self) -> RunDirectory | None:
        """Return the newest directory with this run's config that can go on."""
        return self._find(finished=False)

    def _find(self, *, finished: bool) -> RunDirectory | None:
        wanted = identity(self.config, self.clients)
        # Names start with the time, so the newest is last.
        for path in sorted(self.folder.glob("*/config.json"), reverse=True):
            directory = RunDirectory(path.parent)
            fits = is_finished(directory) if finished else _can_go_on(directory)
            if fits and stored_identity(directory) == wanted:
                return directory
        return None


def plan(
    recipe: Recipe,
    scale: str,
    runs_folder: Path,
    *,
    rows: Sequence[str] = (),
    seeds: Sequence[int] = (),
    ablations: bool = False,
    overrides: Mapping[str, Value] | None = None,
) -> list[PlannedRun]:
    """Return the runs to be done, seed by seed so that early ones can be compared.

    Parameters
    ----------
    recipe : what is run.
    scale : "short" or "paper".
    runs_folder : the runs lie in ``<runs_folder>/<recipe>/<scale>``.
    rows : names of rows; by default all methods and no ablation.
    seeds : by default those of the recipe.
    ablations : run the ablations, and the methods they vary with the same seeds.
    overrides : further config keys; with another value a run is another run, unless
        the key is one of `CHANGEABLE`.
    """
    chosen_scale = recipe.scale(scale)
    if rows:
        chosen = [recipe.row(name) for name in rows]
    elif ablations:
        varied = {row.method for row in recipe.rows if row.is_ablation}
        chosen = [r for r in recipe.rows if r.is_ablation or r.method in varied]
    else:
        chosen = [row for row in recipe.rows if not row.is_ablation]
    overrides = dict(overrides or {})
    refused = sorted(_SET_BY_THE_EXPERIMENT.keys() & overrides.keys())
    if refused:
        raise ConfigError(
            f"{refused[0]!r} is set by the experiment; use "
            f"{_SET_BY_THE_EXPERIMENT[refused[0]]}"
        )

    def seeds_of(row: Row) -> Sequence[int]:
        is_ablation = ablations or row.is_ablation
        usual = chosen_scale.ablation_seeds if is_ablation else chosen_scale.seeds
        return seeds or usual

    folder = runs_folder / recipe.name / scale
    return [
        PlannedRun(recipe, row, scale, seed, folder, overrides)
        for seed in dict.fromkeys(seed for row in chosen for seed in seeds_of(row))
        for row in chosen
        if seed in seeds_of(row)
    ]


def identity(config: Mapping[str, Any], clients: int) -> dict[str, Any]:
    """Return all that decides a run's result; equal identities are the same run."""
    resolved = RunConfig.from_mapping(config, complete=False).to_mapping()
    kept = {key: value for key, value in resolved.items() if key not in _NOT_THE_RESULT}
    return kept | {"num_partitions": clients}


def stored_identity(directory: RunDirectory) -> dict[str, Any] | None:
    """Return the identity of a run directory; None if this version cannot read it."""
    try:
        stored = directory.read_json("config.json")
        return identity(stored["config"], stored["num_partitions"])
    except (RunError, ConfigError, KeyError):
        return None


def is_finished(directory: RunDirectory) -> bool:
    """Return whether the run came to its end."""
    return directory.is_complete()


def _can_go_on(directory: RunDirectory) -> bool:
    checkpoints = directory.path / "checkpoints"
    return not is_finished(directory) and any(checkpoints.glob("*"))

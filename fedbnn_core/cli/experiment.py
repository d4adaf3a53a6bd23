"""`fedbnn experiment`: run the recipes of the paper's tables and print the tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedbnn_core.cli.options import ConfigKeys
from fedbnn_core.errors import ConfigError, FedBNNError, RunError

if TYPE_CHECKING:
    from fedbnn_core.config import Value
    from fedbnn_core.experiments import PlannedRun, ResultRow

__all__ = ["app"]

app = typer.Typer(
    help="Run the paper's experiments and print its tables.", no_args_is_help=True
)

_Names = Annotated[
    list[str] | None,
    typer.Argument(help="Recipes, see `fedbnn experiment list`; or paths of your own."),
]
_Runs = Annotated[Path, typer.Option("--runs", help="Folder of the experiments' runs.")]
DEFAULT_RUNS = Path("runs/experiments")


@app.command("list")
def list_recipes() -> None:
    """Show all recipes and what each of them runs."""
    from fedbnn_core.experiments import load_recipe, recipe_names

    width = max(map(len, recipe_names()))
    for name in recipe_names():
        recipe = load_recipe(name)
        methods = [row.name for row in recipe.rows if not row.is_ablation]
        ablations = [row.name for row in recipe.rows if row.is_ablation]
        typer.echo(f"{name:<{width}}  {recipe.title}")
        typer.echo(f"{'':<{width}}  methods: {', '.join(methods)}")
        typer.echo(f"{'':<{width}}  ablations: {', '.join(ablations)}")


@app.command("run")
def run(
    names: _Names = None,
    scale: str = typer.Option("short", help="short (minutes on a CPU), mid or paper."),
    method: Annotated[
        list[str] | None,
        typer.Option(help="Only this method or ablation; repeatable."),
    ] = None,
    seeds: str = typer.Option("", help="Seeds such as 1,2,3; else the recipe's."),
    ablations: bool = typer.Option(False, help="Run the ablations instead."),
    config: ConfigKeys = None,
    runs: _Runs = DEFAULT_RUNS,
    cpus_per_client: float = typer.Option(1, help="CPUs that a client occupies."),
    gpus_per_client: float = typer.Option(
        -1.0, help="GPUs that a client occupies; by default a tenth if there is one."
    ),
    verbose: bool = typer.Option(False, help="Show all of Flower's output."),
) -> None:
    """Run what is not done yet, then print the table.

    Stop it whenever you like: the same command goes on where it was.
    """
    from fedbnn_core.cli.run import follow_simulation, parse_overrides
    from fedbnn_core.experiments import as_markdown, load_recipe, plan

    if not names:
        raise ConfigError("name a recipe; `fedbnn experiment list` shows them")
    overrides = parse_overrides(config or [])
    planned = [
        planned_run
        for name in names
        for planned_run in plan(
            load_recipe(name),
            scale,
            runs.expanduser().resolve(),
            rows=method or (),
            seeds=_parse_seeds(seeds),
            ablations=ablations,
            overrides=overrides,
        )
    ]
    console = Console(highlight=False)
    left = [planned_run for planned_run in planned if not planned_run.finished()]
    console.print(f"{len(planned)} runs, {len(planned) - len(left)} of them done.")
    failed = []
    for number, planned_run in enumerate(left, start=1):
        console.rule(f"{number} of {len(left)}: {_describe(planned_run)}")
        try:
            follow_simulation(
                _start_or_resume(planned_run),
                clients=planned_run.clients,
                cpus_per_client=cpus_per_client,
                gpus_per_client=gpus_per_client,
                verbose=verbose,
                console=console,
            )
        except FedBNNError as error:
            # The other runs do not depend on this one.
            console.print(f"Failed: {error}", markup=False)
            failed.append(planned_run)
    rows = _collect(names, [scale], overrides, runs)
    if rows:
        typer.echo(as_markdown(rows), nl=False)
    if failed:
        raise RunError(
            f"{len(failed)} of {len(planned)} runs failed: "
            f"{'; '.join(map(_describe, failed))}. The same command tries them again"
        )


@app.command("table")
def table(
    names: _Names = None,
    scale: Annotated[
        str, typer.Option(help="short, mid or paper; by default all, each marked.")
    ] = "",
    format: str = typer.Option("markdown", help="markdown or csv."),
    output: Annotated[
        Path | None, typer.Option(help="Write to this file instead.")
    ] = None,
    config: ConfigKeys = None,
    runs: _Runs = DEFAULT_RUNS,
) -> None:
    """Print our figures beside the paper's; without names, of every recipe."""
    from fedbnn_core.cli.run import parse_overrides
    from fedbnn_core.experiments import as_csv, as_markdown, recipe_names
    from fedbnn_core.experiments.recipes import SCALES

    if scale:
        _require_scale(scale)
    forms = {"markdown": as_markdown, "csv": as_csv}
    if format not in forms:
        raise ConfigError(f"format must be one of {', '.join(forms)}, got {format!r}")
    names = names or list(recipe_names())
    scales = [scale] if scale else list(SCALES)
    rows = _collect(names, scales, parse_overrides(config or []), runs)
    if not rows:
        raise _nothing_finished(names, runs.expanduser().resolve())
    text = forms[format](rows)
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


@app.command("publish")
def publish_runs(
    names: _Names = None,
    scale: str = typer.Option("paper", help="short, mid or paper."),
    to: Annotated[
        Path, typer.Option("--to", help="Folder that holds published runs.")
    ] = Path("experiments/results"),
    runs: _Runs = DEFAULT_RUNS,
) -> None:
    """Keep figures and 1-bit models of finished runs, without anything of the machine.

    What it writes is read like runs: `fedbnn experiment table --runs FOLDER`.
    """
    from fedbnn_core.experiments import publish

    for planned in _finished(names, scale, runs):
        typer.echo(publish(planned, to.expanduser()))


@app.command("plot")
def plot(
    names: _Names = None,
    scale: str = typer.Option("paper", help="short, mid or paper."),
    output: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path(
        "curves.png"
    ),
    runs: _Runs = DEFAULT_RUNS,
) -> None:
    """Draw learning curves of finished runs beside the paper's figures."""
    from fedbnn_core.experiments import draw_curves

    if not output.expanduser().parent.is_dir():
        raise ConfigError(
            f"cannot write {output}: there is no folder {output.parent}; make it or "
            "choose another"
        )
    finished = _finished(names, scale, runs)
    recipes = dict.fromkeys(run.recipe.name for run in finished)
    panels = [[run for run in finished if run.recipe.name == n] for n in recipes]
    draw_curves(panels, output.expanduser())
    typer.echo(f"Plot: {output}")


def _finished(names: list[str] | None, scale: str, runs: Path) -> "list[PlannedRun]":
    """Return the finished runs of recipes, of all without names; there is one."""
    from fedbnn_core.experiments import finished_runs, load_recipe, recipe_names

    _require_scale(scale)
    names, folder = names or list(recipe_names()), runs.expanduser().resolve()
    found = [r for n in names for r in finished_runs(load_recipe(n), scale, folder)]
    if not found:
        raise _nothing_finished(names, folder)
    return found


def _require_scale(scale: str) -> None:
    from fedbnn_core.experiments.recipes import SCALES

    if scale not in SCALES:
        raise ConfigError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")


def _nothing_finished(names: list[str], folder: Path) -> RunError:
    return RunError(
        f"{folder} holds no finished run of {', '.join(names)}; start with "
        f"`fedbnn experiment run {names[0]}`"
    )


def _collect(
    names: list[str], scales: list[str], overrides: "dict[str, Value]", runs: Path
) -> "list[ResultRow]":
    from fedbnn_core.experiments import collect, load_recipe

    folder = runs.expanduser().resolve()
    return [
        row
        for name in names
        for row in collect(
            load_recipe(name), folder, scales=scales, overrides=overrides
        )
    ]


def _start_or_resume(planned_run: "PlannedRun") -> "dict[str, Value]":
    from fedbnn_core.cli.resume import changed_config
    from fedbnn_core.config import CHANGEABLE

    interrupted = planned_run.interrupted()
    if interrupted is None:
        return planned_run.config
    # The server goes on with the stored config: what was asked for now goes there.
    changes = {k: v for k, v in planned_run.overrides.items() if k in CHANGEABLE}
    return changed_config(interrupted, changes) | {"resume": str(interrupted.path)}


def _describe(planned_run: "PlannedRun") -> str:
    return (
        f"{planned_run.recipe.name}, {planned_run.row.name}, "
        f"{planned_run.scale} scale, seed {planned_run.seed}"
    )


def _parse_seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(
            f"seeds must be whole numbers such as 1,2,3; got {text!r}"
        ) from None

"""Learning curves of recipes' runs, one panel a recipe, with the paper's figures."""

from collections.abc import Sequence
from pathlib import Path

from fedbnn_core.experiments.recipes import Recipe
from fedbnn_core.experiments.runs import PlannedRun, plan

__all__ = ["draw_curves", "finished_runs"]


def finished_runs(recipe: Recipe, scale: str, runs_folder: Path) -> list[PlannedRun]:
    """Return the runs of a recipe's rows and seeds that came to their end."""
    if scale not in recipe.scales:
        return []
    rows = [row.name for row in recipe.rows]
    # Seeds beyond the recipe's are told by their folders' names.
    found = {
        int(path.name.rpartition("-seed")[2])
        for path in (runs_folder / recipe.name / scale).glob("*-seed*")
        if path.name.rpartition("-seed")[2].isdecimal()
    }
    planned = plan(recipe, scale, runs_folder, rows=rows, seeds=sorted(found) or [1])
    return [run for run in planned if run.finished()]


def draw_curves(panels: Sequence[Sequence[PlannedRun]], path: Path) -> None:
    """Draw validation accuracy over rounds.

    Parameters
    ----------
    panels : the finished runs of one recipe each. A line is a run, a dashed line the
        test accuracy that the paper has for the row.
    path : of the picture.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(run.row.name for runs in panels for run in runs))
    colours = {name: f"C{number % 10}" for number, name in enumerate(names)}
    width = 1.5 + 4.5 * len(panels)
    figure = Figure(figsize=(width, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, runs in zip(axes, panels, strict=True):
        lowest = 100.0
        for run in runs:
            directory = run.finished()
            if directory is None:
                continue
            scored = [m for m in directory.read_metrics() if m.val_accuracy is not None]
            accuracies = [100 * (m.val_accuracy or 0.0) for m in scored]
            first = accuracies[len(accuracies) // 20 :]
            lowest = min(lowest, *first) if first else lowest
            axis.plot(
                [m.round for m in scored],
                accuracies,
                color=colours[run.row.name],
                linewidth=1,
            )
            published = run.row.published.accuracy
            if published is not None:
                axis.axhline(
                    published, color=colours[run.row.name], linestyle="--", linewidth=1
                )
        axis.set(
            title=runs[0].recipe.title if runs else "",
            xlabel="round",
            ylabel="validation accuracy %",
        )
        # The first rounds would press the rest together.
        axis.set_ylim(bottom=lowest - 1)
        axis.grid(alpha=0.3)
    for name in names:
        axes[0].plot([], [], color=colours[name], label=name)
    axes[0].plot([], [], color="grey", linestyle="--", label="the paper, test")
    figure.legend(loc="outside lower center", ncols=6, fontsize="small")
    figure.savefig(path, dpi=120)

"""`fedbnn compare`: several runs as one table and one plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedbnn_core.errors import ConfigError, printable

if TYPE_CHECKING:
    from fedbnn_core.reporting.comparison import RunFigures

__all__ = ["compare", "plot_runs"]


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, two or more.")],
    plot: Annotated[Path, typer.Option(help="Where the plot goes.")] = Path(
        "compare.png"
    ),
    csv: Annotated[
        Path | None, typer.Option(help="Also write the figures to this CSV file.")
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=100.0,
            help="Validation accuracy in percent to tell the traffic to; by default "
            "the highest one that all runs have reached.",
        ),
    ] = None,
) -> None:
    """Compare accuracy, traffic, FLOPs, memory and time of finished runs."""
    from fedbnn_core.reporting.comparison import as_csv, different_data, read_run

    if len(runs) < 2:
        raise ConfigError(f"name two or more run directories, got {len(runs)}")
    for place in (plot, csv):
        if place is not None and not place.parent.is_dir():
            raise ConfigError(
                f"cannot write {place}: there is no folder {place.parent}; make it "
                "or choose another"
            )
    figures = [read_run(path.expanduser()) for path in runs]
    console = Console(highlight=False)
    console.print(comparison_table(figures, None if target is None else target / 100))
    if differences := different_data(figures):
        console.print(
            f"Warning: the runs differ in {', '.join(differences)}, so the gaps are "
            "not those of the methods alone.",
            soft_wrap=True,
        )
    console.print(
        "gap: points below the best run; in brackets what test images alone explain\n"
        "(two standard errors). Runs with other seeds differ by more than that.\n"
        "paper: convolutions only, binary ones / 58; memory of a 1-bit network / 32.\n"
        "measured: the packed file of a 1-bit network, float32 weights of another.\n"
        "nominal: trained numbers only. Traffic is that of all rounds and clients;\n"
        "bits / weight are those of one message, everything in it included. MB to an\n"
        "accuracy: up and down until a round reached it on the validation half."
    )
    if csv is not None:
        csv.write_text(as_csv(figures), encoding="utf-8")
    plot_runs(figures, plot)
    console.print(f"Plot: {escape(printable(str(plot)))}", soft_wrap=True)


def comparison_table(
    runs: "Sequence[RunFigures]", target: float | None = None
) -> Table:
    """Return the table: one column per run, one line per figure.

    Parameters
    ----------
    runs : what is compared.
    target : validation accuracy, 0 to 1; None: the highest that all have reached.
    """
    from fedbnn_core.reporting.comparison import bytes_to, common_target, gaps

    if target is None:
        target = common_target(runs)

    table = Table(box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for run in runs:
        table.add_column(escape(printable(run.name)), justify="right", overflow="fold")
    lines = {
        "method": [run.method for run in runs],
        "model": [run.model for run in runs],
        "data": [f"{run.dataset}, {run.partition}" for run in runs],
        "rounds (best)": [f"{run.rounds} ({run.best_round})" for run in runs],
        "test accuracy %": [f"{100 * run.test_accuracy:.2f}" for run in runs],
        "gap (noise)": [f"{gap:.2f} ({noise:.2f})" for gap, noise in gaps(runs)],
        "binarized %": [_binarized(run) for run in runs],
        "MB up": [f"{run.bytes_up / 1e6:.2f}" for run in runs],
        "  nominal": [f"{run.bytes_up_nominal / 1e6:.2f}" for run in runs],
        "MB down": [f"{run.bytes_down / 1e6:.2f}" for run in runs],
        "  nominal ": [f"{run.bytes_down_nominal / 1e6:.2f}" for run in runs],
        "bits / weight up": [_decimals(run.bits_up) for run in runs],
        "  down": [_decimals(run.bits_down) for run in runs],
        f"MB to {100 * target:.2f} %": [_megabytes(bytes_to(r, target)) for r in runs],
        "FLOPs, paper": [f"{run.flops:.3g}" for run in runs],
        "  float left": [f"{run.float_flops:.3g}" for run in runs],
        "  + 1-bit": [f"{run.one_bit_ops:.3g}" for run in runs],
        "memory MB, paper": [f"{run.memory_mb:.4f}" for run in runs],
        "  measured": [f"{run.memory_measured_mb:.4f}" for run in runs],
        "s / round": [f"{run.seconds_per_round:.1f}" for run in runs],
        "s in all": [f"{run.seconds:.0f}" for run in runs],
    }
    for name, cells in lines.items():
        table.add_row(name, *(escape(printable(cell)) for cell in cells))
    return table


def _decimals(value: float | None) -> str:
    return "not noted" if value is None else f"{value:.2f}"


def _megabytes(size: int | None) -> str:
    return "not reached" if size is None else f"{size / 1e6:.2f}"


def _binarized(run: "RunFigures") -> str:
    if run.binary:
        return "is binary"
    share = run.ptb_test_accuracy
    return "not scored" if share is None else f"{100 * share:.2f}"


def plot_runs(runs: "Sequence[RunFigures]", path: Path) -> None:
    """Draw validation accuracy over rounds and over traffic, and final figures."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = Figure(figsize=(14, 4.2), layout="constrained")
    over_rounds, over_bytes, cost = figure.subplots(1, 3)
    for run in runs:
        accuracy = [100 * value for value in run.val_accuracy]
        megabytes = [total / 1e6 for total in run.total_bytes]
        over_rounds.plot(run.rounds_seen, accuracy, label=run.name)
        over_bytes.plot(megabytes, accuracy)
        cost.scatter([run.memory_measured_mb], [100 * run.test_accuracy])
    # The first rounds would press the rest together.
    later = [a for run in runs for a in run.val_accuracy[len(run.val_accuracy) // 15 :]]
    for axes in (over_rounds, over_bytes):
        axes.set_ylim(bottom=100 * min(later, default=0.0) - 1)
    over_rounds.set(xlabel="round", ylabel="validation accuracy %")
    over_bytes.set(xlabel="MB up and down so far", xscale="log")
    cost.set(
        xlabel="model memory MB", ylabel="test accuracy %", xscale="log", title="result"
    )
    for axes in (over_bytes, cost):
        # Plain numbers at 1, 2 and 5: the default labels run into each other.
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    over_rounds.grid(alpha=0.3)
    over_rounds.set_title("by round")
    over_bytes.set_title("by traffic")
    figure.legend(loc="outside lower center", ncols=6, fontsize="small")
    figure.savefig(path, dpi=120)

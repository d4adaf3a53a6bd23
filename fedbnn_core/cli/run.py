"""`fedbnn run`: simulate a federation, follow it, print the result."""

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedbnn_core.cli.live_view import RunView
from fedbnn_core.cli.options import ConfigKeys
from fedbnn_core.config import RunConfig, Value
from fedbnn_core.errors import ConfigError, FedBNNError, RunError

__all__ = [
    "REPORT",
    "follow_simulation",
    "parse_overrides",
    "print_result",
    "result_table",
    "run",
    "write_run_report",
]

REPORT = "report.html"


def run(
    clients: int = typer.Option(100, min=1, help="Simulated clients."),
    config: ConfigKeys = None,
    cpus_per_client: float = typer.Option(1, help="CPUs that a client occupies."),
    gpus_per_client: float = typer.Option(
        -1.0, help="Share of a GPU for a client; by default what memory allows."
    ),
    verbose: bool = typer.Option(False, help="Show all of Flower's output."),
    target_ram: Annotated[
        str | None,
        typer.Option(help="Train only what fits a chip with this RAM, as 64k."),
    ] = None,
    target_flash: Annotated[
        str | None,
        typer.Option(help="Train only what fits a chip with this flash, as 128k."),
    ] = None,
) -> None:
    """Train in a simulated federation on this machine."""
    console = Console(highlight=False)
    overrides = parse_overrides(config or [])
    if target_ram is not None or target_flash is not None:
        from fedbnn_core.cli.fit_check import check_fit

        check_fit(
            overrides,
            target_ram=target_ram,
            target_flash=target_flash,
            console=console,
        )
    console.print(f"Starting a simulated federation of {clients} clients ...")
    follow_simulation(
        overrides,
        clients=clients,
        cpus_per_client=cpus_per_client,
        gpus_per_client=gpus_per_client,
        verbose=verbose,
        console=console,
    )


def follow_simulation(
    overrides: dict[str, Value],
    *,
    clients: int,
    cpus_per_client: float,
    gpus_per_client: float,
    verbose: bool,
    console: Console,
) -> None:
    """Run a simulation, print its progress and its result.

    Parameters
    ----------
    overrides : config keys that differ from the defaults.
    clients : simulated clients.
    cpus_per_client, gpus_per_client : what a client occupies; negative GPUs mean
        as many clients on one as its memory allows.
    verbose : print all of Flower's output.
    console : where it is printed.
    """
    from fedbnn_core.cli.preflight import check_machine, check_packages, check_space
    from fedbnn_core.data.loading import own_data_warnings
    from fedbnn_core.flower import run_simulation
    from fedbnn_core.flower.version import require_simulation_engine

    require_simulation_engine()
    settings = RunConfig.from_mapping(overrides, complete=False)
    check_packages(settings)
    check_machine(
        settings, cpus_per_client=cpus_per_client, gpus_per_client=gpus_per_client
    )
    check_space(settings, clients)
    for warning in own_data_warnings(settings.dataset, settings.data_dir or None):
        console.print(f"warning: {warning}", markup=False, soft_wrap=True)
    with RunView(console, verbose=verbose) as view:
        try:
            result = run_simulation(
                overrides,
                num_clients=clients,
                cpus_per_client=cpus_per_client,
                gpus_per_client=None if gpus_per_client < 0 else gpus_per_client,
                on_line=view.line,
            )
        except KeyboardInterrupt:
            view.close()
            _say_stopped(console, view.directory)
            raise typer.Exit(130) from None
    if not result.succeeded or result.directory is None:
        if view.cause is None and not verbose:
            console.print("\n".join(view.tail), markup=False, soft_wrap=True)
        remedy = f"; to go on: fedbnn resume {result.directory}"
        raise RunError(
            f"the run did not complete: {view.cause or result.status}"
            f"{remedy if result.directory else ''}"
        )
    console.print("Writing the report ...")
    write_run_report(result.directory, console)
    print_result(result.directory, console)


def _say_stopped(console: Console, directory: Path | None) -> None:
    text = "Stopped. All processes of the run have ended."
    if directory is None:
        text += " It had not begun to train, so there is nothing to resume."
    else:
        text += f" To go on later: fedbnn resume {directory}"
    console.print(text, markup=False, soft_wrap=True)


def write_run_report(directory: Path, console: Console) -> None:
    """Write the run's report; the run is a success even if that fails."""
    from fedbnn_core.reporting.report import write_report

    try:
        write_report([directory])
    except FedBNNError as error:
        console.print(f"No report: {error}", markup=False, soft_wrap=True)


def parse_overrides(pairs: list[str]) -> dict[str, Value]:
    """Return KEY=VALUE pairs as typed values; text needs no quotes.

    Raises
    ------
    ConfigError
        A pair has no equals sign.
    """
    overrides: dict[str, Value] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator:
            raise ConfigError(f"expected KEY=VALUE, got {pair!r}")
        try:
            value: Any = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        overrides[key.strip()] = value
    return overrides


def result_table(directory: Path) -> Table:
    """Return the closing table of a run."""
    from fedbnn_core.runs.directory import PACKED_MODEL, RunDirectory

    summary = RunDirectory(directory).read_summary()
    if summary is None or summary.test_accuracy is None:
        raise RunError(f"{directory} holds no result: no model was evaluated there")
    table = Table(title="Result", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    kind = "1-bit model" if summary.one_bit_bytes else "float model"
    table.add_row(
        f"Validation accuracy of the {kind}",
        f"{100 * (summary.val_accuracy or 0):.2f} %  (round {summary.best_round} of "
        f"{summary.rounds})",
    )
    table.add_row(
        f"Test accuracy of the {kind}",
        f"{100 * summary.test_accuracy:.2f} %  (images nobody trained on)",
    )
    if "ptb" in summary.variants:
        table.add_row(
            "The same, binarized after training",
            f"{100 * summary.variants['ptb']:.2f} %",
        )
    if summary.delta is not None:
        spent = "unbounded" if summary.epsilon is None else f"{summary.epsilon:.2f}"
        table.add_row(
            "Privacy of each client",
            f"epsilon {spent} at delta {summary.delta:g}",
        )
    table.add_row("Size as float32", _megabytes(summary.float32_bytes))
    packed = directory / PACKED_MODEL
    if summary.one_bit_bytes:
        # The file's own size where there is one, also for an older summary.
        size = packed.stat().st_size if packed.is_file() else summary.one_bit_bytes
        kind = "measured" if packed.is_file() else "counted"
        table.add_row(
            f"Size as 1-bit model, {kind}",
            f"{_megabytes(size)}  ({summary.float32_bytes / size:.1f}x smaller)",
        )
    if summary.paper_bytes:
        table.add_row("  by the paper's rule, / 32", _megabytes(summary.paper_bytes))
    table.add_row("Time", f"{summary.seconds:.0f} s")
    return table


def print_result(directory: Path, console: Console) -> None:
    """Print the closing table and, below it, whole paths to click or to copy."""
    from fedbnn_core.runs.directory import PACKED_MODEL

    console.print(result_table(directory))
    places = {
        "1-bit model": directory / PACKED_MODEL,
        "Report": directory / REPORT,
        "Files": directory,
    }
    for name, path in places.items():
        if path.exists():
            console.print(f"{name}: {path}", markup=False, soft_wrap=True)


def _megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.4f} MB"

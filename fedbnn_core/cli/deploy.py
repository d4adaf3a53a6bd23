"""`fedbnn deploy`: run and watch training on a fleet."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedbnn_core.cli.fleet import open_fleet
from fedbnn_core.cli.options import ConfigKeys, ControlPort, FleetFolder, Verbose
from fedbnn_core.cli.service import service_console, warn_insecure
from fedbnn_core.errors import RunError

if TYPE_CHECKING:
    from fedbnn_core.fleet import Fleet
    from fedbnn_core.flower.control import Endpoint

__all__ = ["app"]

app = typer.Typer(help="Train on a fleet, and see how it stands.", no_args_is_help=True)

_WORTH_SHOWING = (
    *("WARNING", "ERROR", "Exit Code", "Traceback", "Waiting", "Run directory"),
    *("Finished", "stored the model", "clients are connected"),
)
_Insecure = Annotated[
    bool, typer.Option("--insecure", help="The server runs with --insecure.")
]
_CONTROL = "127.0.0.1:8000"


@app.command()
def run(
    config: ConfigKeys = None,
    fleet: FleetFolder = None,
    control: ControlPort = _CONTROL,
    insecure: _Insecure = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Submit the run and return.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Train on the fleet, follow the run, and exit non-zero if it fails."""
    from fedbnn_core.cli.resume import changed_config
    from fedbnn_core.cli.run import parse_overrides, print_result, write_run_report
    from fedbnn_core.flower.deployment import follow_run, submit_run
    from fedbnn_core.runs.directory import RunDirectory
    from fedbnn_core.runs.log import plain_line, round_in, stopped_in

    console = service_console()
    endpoint, opened = _endpoint(fleet, control, insecure)
    partitions = opened.num_partitions() if opened else 0
    overrides = parse_overrides(config or [])
    if resumed := str(overrides.pop("resume", "")):
        path = Path(resumed).expanduser().resolve()
        if overrides:
            changed_config(RunDirectory.open(path), overrides)
        # The directory lies on the server, which may be another host.
        overrides = {"resume": str(path) if path.is_dir() else resumed}
    run_id = submit_run(overrides, endpoint, num_partitions=partitions)
    console.print(f"Run {run_id} submitted.")
    if detach:
        console.print("See 'fedbnn deploy status'.")
        return
    tail: list[str] = []
    stopped = False

    def show(line: str) -> None:
        nonlocal stopped
        tail.append(line)
        del tail[:-40]
        if verbose:
            console.print(line, markup=False)
        elif not stopped and (
            round_in(line) or any(word in line for word in _WORTH_SHOWING)
        ):
            console.print(plain_line(line), markup=False)
        # What follows is Flower's trace of an end that has been explained.
        stopped = stopped or stopped_in(line) is not None

    try:
        result = follow_run(run_id, endpoint, on_line=show)
    except KeyboardInterrupt:
        console.print(
            f"\nNo longer following; the run goes on. 'fedbnn deploy stop {run_id}' "
            "ends it."
        )
        raise typer.Exit(130) from None
    if stopped and result.directory is not None:
        raise RunError(
            f"run {run_id} ended before its last round; what it has is in "
            f"{result.directory}. To go on: fedbnn deploy run -c "
            f"resume={result.directory}"
        )
    if not result.succeeded:
        if not verbose and not stopped:
            console.print("\n".join(tail), markup=False)
        raise RunError(
            f"run {run_id} did not complete: {result.run.status} {result.run.details}"
        )
    if result.directory and RunDirectory(result.directory).read_summary():
        write_run_report(result.directory, console)
        print_result(result.directory, console)
    else:
        console.print(f"Completed. Files on the server: {result.directory}")


@app.command()
def status(
    fleet: FleetFolder = None,
    control: ControlPort = _CONTROL,
    insecure: _Insecure = False,
) -> None:
    """Show the devices, and how far the newest run is."""
    from fedbnn_core.flower.deployment import status as ask

    console = service_console()
    devices, newest, progress = ask(*_endpoint(fleet, control, insecure))
    table = Table()
    for title in ("Device", "Number", "Status", "Since"):
        table.add_column(title, overflow="fold")
    for row in devices:
        number = "" if row.partition_id is None else str(row.partition_id)
        table.add_row(row.name, number, row.status, row.last_change[:19])
    console.print(table)
    if newest is None:
        console.print("No run yet: fedbnn deploy run")
        return
    console.print(f"Run {newest.run_id}: {newest.status} {newest.details}".rstrip())
    accuracy = (
        "not evaluated yet"
        if progress.val_accuracy is None
        else f"validation accuracy {progress.val_accuracy:.2f} %"
    )
    console.print(f"Round {progress.round} of {progress.num_rounds or '?'}, {accuracy}")
    console.print(
        f"Traffic: {newest.bytes_sent / 1e6:.1f} MB to devices, "
        f"{newest.bytes_received / 1e6:.1f} MB from them"
    )
    if progress.note and not newest.is_finished:
        console.print(progress.note, markup=False)


@app.command()
def stop(
    run_id: Annotated[int, typer.Argument(help="The run's number.")],
    fleet: FleetFolder = None,
    control: ControlPort = _CONTROL,
    insecure: _Insecure = False,
) -> None:
    """End a run; what it has saved stays."""
    from fedbnn_core.flower.control import connected

    endpoint, _ = _endpoint(fleet, control, insecure)
    with connected(endpoint) as connection:
        connection.run(run_id)
        connection.stop(run_id)
    service_console().print(f"Run {run_id} is ending.")


def _endpoint(
    folder: FleetFolder, control: str, insecure: bool
) -> tuple["Endpoint", "Fleet | None"]:
    from fedbnn_core.flower.control import Endpoint

    if insecure:
        warn_insecure(service_console())
        return Endpoint(control), None
    fleet = open_fleet(folder)
    return Endpoint(control, fleet.ca_certificate), fleet

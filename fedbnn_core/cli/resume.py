"""`fedbnn resume`: go on with a run that was interrupted."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedbnn_core.cli.run import (
    REPORT,
    follow_simulation,
    parse_overrides,
    print_result,
    write_run_report,
)
from fedbnn_core.config import CHANGEABLE, RunConfig, Value
from fedbnn_core.config.defaults import UNNAMED
from fedbnn_core.errors import ConfigError

if TYPE_CHECKING:
    from fedbnn_core.runs.directory import RunDirectory

__all__ = ["changed_config", "finish_missing", "resume"]


def resume(
    run_dir: Annotated[Path, typer.Argument(help="The run's directory.")],
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            help="Change a key, as KEY=VALUE; repeatable. One of: "
            + ", ".join(CHANGEABLE),
        ),
    ] = None,
    cpus_per_client: float = typer.Option(1, help="CPUs that a client occupies."),
    gpus_per_client: float = typer.Option(
        -1.0, help="Share of a GPU for a client; by default what memory allows."
    ),
    verbose: bool = typer.Option(False, help="Show all of Flower's output."),
) -> None:
    """Go on with an interrupted run from its last checkpoint, in its directory."""
    from fedbnn_core.cli.preflight import check_checkpoints
    from fedbnn_core.flower.private_home import end_leftovers
    from fedbnn_core.runs.directory import RunDirectory

    path = run_dir.expanduser().resolve()
    directory = RunDirectory.open(path)
    console = Console(highlight=False)
    if directory.is_complete():
        finish_missing(path, console)
        return
    # A launcher that was killed may have left its server behind, which holds the run.
    if end_leftovers():
        console.print("Ended what a killed run had left behind.")
    for damage in check_checkpoints(directory):
        console.print(f"Damaged checkpoint: {damage}", markup=False, soft_wrap=True)
    merged = changed_config(directory, parse_overrides(config or []))
    clients = int(directory.read_json("config.json")["num_partitions"])
    console.print(f"Resuming with a simulated federation of {clients} clients ...")
    follow_simulation(
        merged | {"resume": str(path)},
        clients=clients,
        cpus_per_client=cpus_per_client,
        gpus_per_client=gpus_per_client,
        verbose=verbose,
        console=console,
    )


def finish_missing(path: Path, console: Console) -> None:
    """Write what a run lacks that was interrupted after its last round."""
    from fedbnn_core.runs.directory import PACKED_MODEL, RunDirectory
    from fedbnn_core.runs.model import export_run

    missing = []
    summary = RunDirectory.open(path).read_summary()
    is_binary = summary is not None and summary.one_bit_bytes
    if is_binary and not (path / PACKED_MODEL).is_file():
        missing.append(PACKED_MODEL)
        export_run(path, path / PACKED_MODEL)
    if not (path / REPORT).is_file():
        missing.append(REPORT)
        write_run_report(path, console)
    if missing:
        console.print(
            f"All rounds were done. Made what was missing: {', '.join(missing)}"
        )
    else:
        console.print("The run is complete; there is nothing to resume.")
    print_result(path, console)


def changed_config(
    directory: "RunDirectory", changes: dict[str, Value]
) -> dict[str, Value]:
    """Change a stored run's config before it is resumed; return the whole config.

    Raises
    ------
    ConfigError
        A key says what the run computes, so it cannot change, or a value is wrong.
    """
    stored = directory.read_json("config.json")
    refused = sorted(set(changes) - set(CHANGEABLE))
    if refused:
        raise ConfigError(
            f"a resumed run cannot change {', '.join(refused)}; it can change: "
            f"{', '.join(CHANGEABLE)}"
        )
    merged: dict[str, Value] = {**UNNAMED, **stored["config"], **changes}
    RunConfig.from_mapping(merged, complete=False)
    if changes:
        # The server takes the stored config, so that is where the change goes.
        directory.lock()
        directory.write_json("config.json", stored | {"config": merged})
        directory.release()
    return merged

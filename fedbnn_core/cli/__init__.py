"""The `fedbnn` command: one module per subcommand, heavy imports inside them."""

import signal
import sys
from types import FrameType
from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from fedbnn_core import __version__
from fedbnn_core.cli import (
    bench,
    compare,
    complexity,
    config,
    dashboard,
    data,
    deploy,
    device,
    evaluate,
    experiment,
    export,
    fit_check,
    fleet,
    info,
    partition,
    predict,
    raw,
    report,
    resume,
    run,
)
from fedbnn_core.errors import FedBNNError

__all__ = ["app", "main"]

# What the extra `device` brings; the base installation only runs packed models.
_OF_DEVICE = (
    "cryptography",
    "fastapi",
    "flwr",
    "grpc",
    "matplotlib",
    "psutil",
    "safetensors",
    "scipy",
    "tensorboard",
    "torch",
    "torchvision",
    "uvicorn",
)
_SIMULATING = ("experiment", "resume", "run")

app = typer.Typer(
    name="fedbnn",
    help="Train 1-bit neural networks in federation, and run them anywhere.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


app.add_typer(data.app, name="data")
app.add_typer(experiment.app, name="experiment")
app.command("bench")(bench.bench)
app.command("compare")(compare.compare)
app.add_typer(deploy.app, name="deploy")
app.add_typer(fleet.app, name="fleet")
app.command("complexity")(complexity.complexity)
app.command("config")(config.config)
app.command("dashboard")(dashboard.dashboard)
app.command("device")(device.device)
app.command("evaluate")(evaluate.evaluate)
app.command("export")(export.export)
app.command("fit-check")(fit_check.fit_check)
app.command("info")(info.info)
app.command("partition")(partition.partition)
app.command("predict")(predict.predict)
app.command("raw")(raw.raw)
app.command("report")(report.report)
app.command("resume")(resume.resume)
app.command("run")(run.run)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedbnn {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Show version."
    ),
) -> None:
    """Train 1-bit neural networks in federation, and run them anywhere."""


def main() -> None:
    """Run the command line; a FedBNN error is one clear line and exit code 1."""
    # A service manager's SIGTERM and a closed terminal end a command as Ctrl-C does:
    # with all processes that it started. Under nohup a closed terminal does not.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        app()
    except FedBNNError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _OF_DEVICE:
            raise
        simulates = sys.argv[1:2] and sys.argv[1] in _SIMULATING
        _fail(
            f"this command needs {error.name}, which is not installed; install it "
            f"with: pip install 'fedbnn[{'simulation' if simulates else 'device'}]'"
        )
    except OSError as error:
        if error.filename is None:
            raise
        _fail(
            f"cannot use {error.filename}: {error.strerror}; choose another place, or "
            "make sure that it can be read and written"
        )


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _fail(message: str) -> None:
    Console(stderr=True).print(
        f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True
    )
    sys.exit(1)

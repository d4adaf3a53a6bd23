"""Commands that run until they are told to end: the server and the devices."""

import threading
from collections.abc import Callable

import typer
from rich.console import Console

from fedbnn_core.runs.log import plain_line

__all__ = ["run_until_stopped", "service_console", "warn_insecure"]

_Say = Callable[[str], None]
_WORTH_SHOWING = (
    *("WARNING", "ERROR", "Exit Code", "Traceback", "round "),
    "The model has arrived",
)


def service_console() -> Console:
    """Return a console whose lines are never cut or wrapped: they may go to a log."""
    return Console(highlight=False, soft_wrap=True)


def warn_insecure(console: Console) -> None:
    """Say what --insecure means."""
    console.print(
        "[bold yellow]warning:[/] --insecure: nothing is encrypted and nobody proves "
        "who they are. Use it for trials on one machine only."
    )


def run_until_stopped(
    console: Console, body: Callable[[_Say, _Say], None], verbose: bool
) -> None:
    """Run a service; SIGTERM and Ctrl-C end it and all its processes.

    Parameters
    ----------
    console : Console
        Where its messages go.
    body : callable
        The service. Receives a function for messages and one for Flower's log lines.
    verbose : bool
        Whether all of Flower's lines are shown, or warnings and results only.
    """
    lock = threading.Lock()

    def say(text: str) -> None:
        with lock:
            console.print(text, markup=False)

    def show(line: str) -> None:
        if verbose or any(word in line for word in _WORTH_SHOWING):
            say(plain_line(line))

    try:
        body(say, show)
    except KeyboardInterrupt:
        say("Stopped.")
        raise typer.Exit(0) from None

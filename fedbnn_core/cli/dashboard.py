"""`fedbnn dashboard`: follow a run in the browser, or try its model."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedbnn_core.errors import RunError

__all__ = ["dashboard", "newest_run"]

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def dashboard(
    run_dirs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="The run to follow, then runs to compare it with "
            "[default: the newest in runs/]."
        ),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Also try the packed model, at /demo.")
    ] = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others can then reach it.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")
    ] = 8050,
    show: Annotated[bool, typer.Option("--open", help="Open the browser.")] = False,
) -> None:
    """Serve a live page about a run on this machine."""
    import socket

    import uvicorn

    from fedbnn_core.reporting.dashboard import create_app
    from fedbnn_core.reporting.dashboard.demo import open_demo

    console = Console(highlight=False)
    paths = run_dirs or [newest_run(Path("runs"))]
    local = host in _LOOPBACK
    app = create_app(
        paths,
        demo=open_demo(paths[0]) if demo else None,
        hosts=_LOOPBACK if local else None,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise RunError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another "
            "with --port, or --port 0 for any"
        ) from error
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{listener.getsockname()[1]}/{'demo' if demo else ''}"
    if not local:
        console.print(
            "[yellow]Everybody who can reach this machine can see the run.[/]"
        )
    console.print(f"Dashboard of {escape(str(paths[0]))}", soft_wrap=True)
    console.print(f"{address}  (Ctrl-C ends it)", soft_wrap=True)
    if show:
        typer.launch(address)
    config = uvicorn.Config(app, log_level="warning", access_log=False, ws="none")
    uvicorn.Server(config).run(sockets=[listener])


def newest_run(parent: Path) -> Path:
    """Return the run directory whose files changed last."""
    runs = [path.parent for path in parent.glob("*/config.json")]
    if not runs:
        raise RunError(
            f"no run in {parent.resolve()}; name a run directory, or start one with "
            "fedbnn run"
        )
    return max(runs, key=lambda run: max(f.stat().st_mtime for f in run.iterdir()))

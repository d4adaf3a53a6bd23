"""`fedbnn device`: join a fleet with this device's own data."""

import os
import socket
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedbnn_core.cli.options import Verbose
from fedbnn_core.cli.service import run_until_stopped, service_console, warn_insecure
from fedbnn_core.errors import FleetError

__all__ = ["device"]


def device(
    data: Annotated[
        str,
        typer.Option(
            help="Its images: a folder with one subfolder per class, an .npz file, or "
            "'partition' for its share of the dataset that a run names."
        ),
    ] = "partition",
    server: Annotated[
        str, typer.Option(help="HOST:PORT; by default what the bundle says.")
    ] = "",
    bundle: Annotated[
        Path | None,
        typer.Option(
            help="Its credentials; by default ~/.config/fedbnn/device.bundle."
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder for models; by default ~/.local/share/fedbnn/device."
        ),
    ] = None,
    data_dir: Annotated[
        str, typer.Option(help="Where named datasets lie on this device.")
    ] = "",
    train_on: Annotated[
        str,
        typer.Option(
            "--device",
            help="Where it trains: auto, cpu, cuda, cuda:1, ... A device does not use "
            "the run's key.",
        ),
    ] = "auto",
    threads: Annotated[
        int,
        typer.Option(
            min=0,
            help="Threads that train; 0: one per core. A device does not use the run's "
            "client-threads. Bits depend on the number of threads: choose 1 to get "
            "those of a simulation.",
        ),
    ] = 0,
    cold: Annotated[
        bool,
        typer.Option(
            "--cold",
            help="Start and load a process for every message. Slower; between messages "
            "it needs less memory, for torch, the data and the network are not kept.",
        ),
    ] = False,
    wait: Annotated[
        bool, typer.Option(help="Wait for a server that cannot be reached yet.")
    ] = True,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS and no key. For trials.")
    ] = False,
    number: Annotated[
        int, typer.Option(min=0, help="With --insecure: its number in the fleet.")
    ] = 0,
    verbose: Verbose = False,
) -> None:
    """Take part in a fleet's runs with this device's images, until Ctrl-C.

    Images never leave the device; weights do, over gRPC with TLS. When a run is over,
    the 1-bit model comes back and is stored as models/model.fbnn in the state folder.
    """
    from fedbnn_core.fleet import read_bundle
    from fedbnn_core.fleet.bundle import others_can_read
    from fedbnn_core.flower.supernode import DeviceSettings, run_device

    console = service_console()
    credentials = None
    if insecure:
        warn_insecure(console)
        if not server:
            raise FleetError("--insecure needs --server HOST:PORT")
    else:
        path = bundle or _default_bundle()
        credentials = read_bundle(path)
        if others_can_read(path):
            console.print(
                f"warning: others on this machine can read {path}, which is as good "
                f"as a password; say: chmod 600 {path}",
                markup=False,
            )
    own = "" if data == "partition" else data
    if own:
        _check(own, console)
    settings = DeviceSettings(
        server=server or (credentials.server if credentials else ""),
        partition_id=credentials.partition_id if credentials else number,
        name=credentials.device if credentials else socket.gethostname(),
        state=(state or _default_state()).expanduser(),
        data=own,
        data_dir=data_dir,
        device=train_on,
        threads=threads,
        insecure=insecure,
        cold=cold,
    )
    console.print(
        f"{settings.name}: joining {settings.server}, models go to {settings.models}",
        markup=False,
    )
    run_until_stopped(
        console,
        lambda say, show: run_device(
            settings, credentials, say=say, on_line=show, wait=wait
        ),
        verbose,
    )


def _check(data: str, console: Console) -> None:
    """Look the device's data over before joining, and say what was found."""
    from fedbnn_core.fleet.own_data import summarise_own_data

    console.print(summarise_own_data(data), markup=False)


def _default_bundle() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "fedbnn" / "device.bundle"


def _default_state() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "fedbnn" / "device"

"""`fedbnn fleet`: credentials and devices of a fleet, and its server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedbnn_core.cli.options import ControlPort, FleetFolder, Verbose
from fedbnn_core.cli.service import run_until_stopped, service_console, warn_insecure
from fedbnn_core.errors import FleetError

if TYPE_CHECKING:
    from fedbnn_core.fleet import Fleet

__all__ = ["app", "open_fleet"]

app = typer.Typer(
    help="Set up a fleet of devices: its keys, its devices, its server.",
    no_args_is_help=True,
)

_Hosts = Annotated[
    list[str],
    typer.Option("--host", help="Name or IP under which devices reach the server."),
]
_Days = Annotated[int, typer.Option(min=1, help="Days until the certificate expires.")]


@app.command()
def init(
    host: _Hosts,
    fleet: FleetFolder = None,
    port: Annotated[int, typer.Option(help="Port that devices call.")] = 9092,
    days: _Days = 825,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="If the fleet is there already, keep it and only see to its names.",
        ),
    ] = False,
) -> None:
    """Make the fleet's certificate authority and its server's certificate."""
    from fedbnn_core.fleet import Fleet, default_fleet_folder

    console = service_console()
    folder = fleet or default_fleet_folder()
    if keep and (folder / "fleet.json").exists():
        _keep_fleet(Fleet.open(folder), host, days, console)
        return
    made = Fleet.create(folder, host, port=port, days=days)
    console.print(f"Made a fleet in {folder}; keep this folder to yourself.")
    _print_certificates(made, console)
    console.print("Next: fedbnn fleet add DEVICE, and fedbnn fleet serve")


@app.command()
def renew(
    host: Annotated[
        list[str] | None, typer.Option(help="More names; those it has stay.")
    ] = None,
    fleet: FleetFolder = None,
    days: _Days = 825,
) -> None:
    """Make a new server certificate; devices keep their bundles."""
    made = open_fleet(fleet)
    made.renew(host or (), days=days)
    console = service_console()
    _print_certificates(made, console)
    console.print("Restart the server to use it.")


@app.command()
def add(
    device: Annotated[str, typer.Argument(help="The device's name.")],
    fleet: FleetFolder = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            help="A new file for a copy of the bundle; - for the output. The fleet's "
            "folder has it in any case."
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Do nothing if the device is there already.")
    ] = False,
) -> None:
    """Add a device: make its key and the bundle to copy to it."""
    opened = open_fleet(fleet)
    console = service_console()
    is_printed = str(bundle) == "-"
    is_known = any(known.name == device for known in opened.devices())
    if keep and is_known:
        if is_printed:
            _print_bundle(opened, device)
            return
        if bundle is not None and not bundle.exists():
            _copy_bundle(opened, device, bundle)
        console.print(f"{device} stays as it is.")
        return
    if bundle is not None and bundle.exists() and not is_known:
        raise FleetError(
            f"{bundle} exists already and may be the only copy of another bundle; "
            "choose a new file, or move that one away"
        )
    added, path = opened.add(device)
    if is_printed:
        _print_bundle(opened, device)
        return
    if bundle is not None:
        path = _copy_bundle(opened, device, bundle)
    console.print(
        f"{added.name} is number {added.partition_id} of the fleet. Copy its bundle, "
        "which is as good as a password, and start it there:"
    )
    console.print(
        f"  scp {path} {added.name}:device.bundle\n"
        "  fedbnn device --bundle device.bundle --data PATH_OF_ITS_IMAGES",
        soft_wrap=True,
    )


@app.command("bundle")
def print_bundle(
    device: Annotated[str, typer.Argument(help="The device's name.")],
    fleet: FleetFolder = None,
) -> None:
    """Print a device's bundle again, which is as good as a password."""
    _print_bundle(open_fleet(fleet), device)


@app.command("list")
def list_devices(fleet: FleetFolder = None) -> None:
    """Show the devices and when the certificates expire."""
    opened = open_fleet(fleet)
    console = service_console()
    table = Table()
    for title in ("Device", "Number", "Added"):
        table.add_column(title, overflow="fold")
    for device in opened.devices():
        table.add_row(device.name, str(device.partition_id), device.added)
    console.print(table)
    console.print(f"Devices call {opened.address}")
    _print_certificates(opened, console)


@app.command()
def remove(
    device: Annotated[str, typer.Argument(help="The device's name.")],
    fleet: FleetFolder = None,
) -> None:
    """Remove a device: it can no longer join, and is cut off if it is connected."""
    open_fleet(fleet).remove(device)
    service_console().print(
        f"{device} is out of the fleet. A running server cuts it off within seconds."
    )


@app.command()
def serve(
    fleet: FleetFolder = None,
    fleet_address: Annotated[
        str,
        typer.Option(
            help="Where devices connect; by default the port of 'fleet init' on all "
            "interfaces, with --insecure 127.0.0.1:9092."
        ),
    ] = "",
    control: Annotated[
        str, typer.Option(help="The operator's port; keep it on loopback.")
    ] = "127.0.0.1:8000",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS, anybody may join. For trials.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Run the server: Flower's SuperLink for this fleet, until Ctrl-C."""
    from fedbnn_core.flower.reachability import split_address
    from fedbnn_core.flower.superlink import ServerSettings, serve_fleet

    console = service_console()
    host, port = split_address(control)
    if host not in ("127.0.0.1", "::1", "localhost"):
        console.print(
            f"[bold yellow]warning:[/] the control port listens on {host}: whoever "
            "reaches it can run code on every device"
        )
    if insecure:
        warn_insecure(console)
        opened, usual_address = None, "127.0.0.1:9092"
    else:
        opened = open_fleet(fleet)
        usual_address = opened.listening_address
    run_until_stopped(
        console,
        lambda say, show: serve_fleet(
            opened,
            ServerSettings(fleet_address or usual_address, host, port, insecure),
            say=say,
            on_line=show,
        ),
        verbose,
    )


@app.command()
def health(
    fleet: FleetFolder = None,
    control: ControlPort = "127.0.0.1:8000",
) -> None:
    """Exit with 0 if the server on this host answers; for health checks."""
    import ssl
    from urllib.request import HTTPSHandler, ProxyHandler, build_opener

    opened = open_fleet(fleet)
    context = ssl.create_default_context(cafile=str(opened.ca_certificate))
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
    try:
        with opener.open(f"https://{control}/health", timeout=5):
            service_console().print("The server answers.")
    except OSError as error:
        raise FleetError(f"the server does not answer on {control}: {error}") from error


def _keep_fleet(fleet: "Fleet", hosts: list[str], days: int, console: Console) -> None:
    """Make an existing fleet answer to these names, unless it does already."""
    if fleet.answers_to(hosts):
        console.print(f"The fleet in {fleet.folder} stays as it is.")
        return
    fleet.renew(hosts, days=days, preferred=True)
    console.print(
        f"The fleet in {fleet.folder} stays, with a new server certificate for more "
        f"names. New bundles call {fleet.address}; older ones call what they did."
    )
    _print_certificates(fleet, console)


def _print_bundle(fleet: "Fleet", device: str) -> None:
    """Write a device's bundle to the standard output, nothing else."""
    typer.echo(fleet.bundle(device).read_text(encoding="utf-8"), nl=False)


def _copy_bundle(fleet: "Fleet", device: str, path: Path) -> Path:
    """Write a copy of a device's bundle, readable by its owner only."""
    from fedbnn_core.files import write_private

    try:
        write_private(path, fleet.bundle(device).read_bytes())
    except OSError as error:
        raise FleetError(
            f"cannot write {path}: {error.strerror}; {device} is in the fleet, and "
            f"'fedbnn fleet bundle {device}' prints its bundle"
        ) from error
    return path


def open_fleet(folder: Path | None) -> "Fleet":
    """Open the fleet that an option or the environment names."""
    from fedbnn_core.fleet import Fleet, default_fleet_folder

    return Fleet.open(folder or default_fleet_folder())


def _print_certificates(fleet: "Fleet", console: Console) -> None:
    console.print(f"Server certificate for {', '.join(fleet.server_names())}")
    for name, end in fleet.expiries().items():
        console.print(f"The {name} expires on {end:%Y-%m-%d}")

"""Submit a run to a deployment, follow it, and say how it stands."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedbnn_core.config import RunConfig, Value
from fedbnn_core.errors import FleetError
from fedbnn_core.fleet.credentials import public_pem
from fedbnn_core.fleet.registry import Fleet
from fedbnn_core.flower.app_bundle import stage_app, toml_value, write_overrides
from fedbnn_core.flower.child import fleet_environment, flower_command
from fedbnn_core.flower.control import Connection, Endpoint, RunState, connected
from fedbnn_core.runs.log import directory_in, round_in, split_level

__all__ = [
    "DeploymentResult",
    "DeviceStatus",
    "RunProgress",
    "follow_run",
    "run_progress",
    "status",
    "submit_run",
]

_SUBMIT_SECONDS = 120


@dataclass(frozen=True)
class DeploymentResult:
    """How a run of the fleet ended."""

    run: RunState
    directory: Path | None
    """The run directory on the server, unless the run failed before making one."""

    @property
    def succeeded(self) -> bool:
        """Whether it completed."""
        return self.run.status == "finished:completed"


@dataclass(frozen=True)
class RunProgress:
    """How far a run is, from its log."""

    round: int = 0
    num_rounds: int = 0
    val_accuracy: float | None = None
    """Of the last round that was evaluated, in percent."""
    note: str = ""
    """The last warning or waiting message."""


@dataclass(frozen=True)
class DeviceStatus:
    """A device of the fleet as the server sees it."""

    name: str
    partition_id: int | None
    status: str
    last_change: str


def submit_run(
    overrides: Mapping[str, Value], endpoint: Endpoint, *, num_partitions: int = 0
) -> int:
    """Submit a run and return its number; raise `FleetError` if it is refused.

    Parameters
    ----------
    overrides : mapping
        Config keys that differ from the defaults; checked before anything is sent.
    endpoint : Endpoint
        The SuperLink's control port.
    num_partitions : int
        Into how many parts a named dataset is divided, unless the overrides say so.
    """
    overrides = {"num-partitions": num_partitions, **overrides}
    RunConfig.from_mapping(overrides, complete=False)
    with connected(endpoint) as connection:
        connection.runs()  # A clear error now if the server does not answer.
    with tempfile.TemporaryDirectory(prefix="fedbnn-") as folder:
        home = Path(folder)
        (home / "flwr").mkdir()
        settings = "".join(
            f"{key} = {toml_value(value)}\n"
            for key, value in endpoint.flower_settings().items()
        )
        (home / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "fleet"\n[superlink.fleet]\n{settings}',
            encoding="utf-8",
        )
        config = write_overrides(home / "overrides.toml", overrides)
        try:
            answer = subprocess.run(  # noqa: S603
                [
                    *(flower_command("flwr"), "run", str(stage_app(home)), "fleet"),
                    *("-c", str(config), "--format", "json"),
                ],
                env=fleet_environment(home / "flwr"),
                capture_output=True,
                text=True,
                check=False,
                timeout=_SUBMIT_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise FleetError(
                f"the server did not take the run within {_SUBMIT_SECONDS} s; see "
                "'fedbnn deploy status' whether it has it, and try again if not"
            ) from error
    try:
        return int(json.loads(answer.stdout)["run-id"])
    except (ValueError, KeyError, TypeError) as error:
        said = (answer.stdout + answer.stderr).strip()
        raise FleetError(f"the server did not take the run: {said}") from error


def follow_run(
    run_id: int, endpoint: Endpoint, *, on_line: Callable[[str], None]
) -> DeploymentResult:
    """Follow a run to its end; `on_line` receives every line of its log.

    Raises
    ------
    FleetError
        The server is gone; the message says how to go on with the run.
    """
    directory = None
    try:
        with connected(endpoint) as connection:
            for line in connection.follow(run_id):
                directory = directory_in(line) or directory
                on_line(line)
            return DeploymentResult(connection.run(run_id), directory)
    except FleetError as error:
        if directory is None:
            raise
        raise FleetError(
            f"{error}. A run ends with its server; when that is back, go on with: "
            f"fedbnn deploy run -c resume={directory}"
        ) from error


def run_progress(log: list[str]) -> RunProgress:
    """Read from a run's log how far it is."""
    done = total = 0
    accuracy = None
    note = ""
    for line in log:
        level, message = split_level(line)
        if news := round_in(line):
            done, total, note = news.round, news.num_rounds, ""
            if news.val_accuracy is not None:
                accuracy = news.val_accuracy
        elif level == "WARNING" or message.startswith("Waiting"):
            note = message
    return RunProgress(done, total, accuracy, note)


def status(
    endpoint: Endpoint, fleet: Fleet | None
) -> tuple[list[DeviceStatus], RunState | None, RunProgress]:
    """Return the devices, the newest run, and how far that is."""
    with connected(endpoint) as connection:
        devices = _devices(connection, fleet)
        runs = connection.runs()
        if not runs:
            return devices, None, RunProgress()
        return devices, runs[0], run_progress(connection.log(runs[0].run_id))


def _devices(connection: Connection, fleet: Fleet | None) -> list[DeviceStatus]:
    nodes = connection.nodes()
    known = {
        public_pem(device.public_key.encode()): device
        for device in (fleet.devices() if fleet else [])
    }
    rows = [
        DeviceStatus(
            known[key].name if key in known else node.name or str(node.node_id),
            known[key].partition_id if key in known else None,
            node.status,
            node.last_change,
        )
        for key, node in nodes.items()
    ]
    rows += [
        DeviceStatus(device.name, device.partition_id, "not registered yet", "")
        for key, device in known.items()
        if key not in nodes
    ]
    return sorted(rows, key=lambda row: (row.partition_id is None, row.partition_id))

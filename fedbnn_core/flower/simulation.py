"""Run a simulated federation with ``flwr run`` in a private, temporary Flower home.

Flower's local SuperLink stays alive after a run, freezes the environment and working
directory of its first start, and reports failed runs with exit code 0; ``flwr run``
gives it 15 seconds to start, which a busy machine exceeds. Here every run has its own
state folder and SuperLink, its outcome is asked for, and its processes end.
"""

import http.client
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbnn_core.config import RunConfig, Value
from fedbnn_core.errors import RunError
from fedbnn_core.flower.app_bundle import stage_app, write_overrides
from fedbnn_core.flower.child import die_with_parent, flower_command, started
from fedbnn_core.flower.gpus import (
    ClientPlan,
    Machine,
    look_around,
    plan_clients,
)
from fedbnn_core.flower.private_home import PORT, end_leftovers, private_home
from fedbnn_core.flower.version import require_simulation_engine
from fedbnn_core.flower.warm import write_quick
from fedbnn_core.runs.dataset import load_run_dataset, run_partition
from fedbnn_core.runs.directory import require_output_folder
from fedbnn_core.runs.log import directory_in

__all__ = ["SimulationResult", "run_simulation"]

_START_SECONDS = 300.0
_STATUS_SECONDS = 300.0


@dataclass(frozen=True)
class SimulationResult:
    """How a simulated run ended."""

    succeeded: bool
    status: str
    """Flower's own words, such as ``finished:completed``."""
    directory: Path | None
    """The run directory, unless the run failed before making one."""


def run_simulation(
    overrides: Mapping[str, Value],
    *,
    num_clients: int,
    cpus_per_client: float = 1,
    gpus_per_client: float | None = None,
    on_line: Callable[[str], None] = lambda line: None,
) -> SimulationResult:
    """Simulate a federation and wait for its end.

    Parameters
    ----------
    overrides : config keys that differ from the defaults. They and the dataset are
        checked before any start, as is its partition.
    num_clients : simulated clients; the training data is divided among them.
    cpus_per_client, gpus_per_client : what one client occupies while it trains. The
        share of a GPU is by default what its memory allows (`plan_clients`).
    on_line : receives every line of Flower's log.

    Whatever happens, including KeyboardInterrupt, no process is left running.
    """
    require_simulation_engine()
    end_leftovers()
    config = RunConfig.from_mapping(overrides, complete=False)
    overrides = dict(overrides) | {
        "output-dir": str(Path(config.output_dir).expanduser().resolve())
    }
    if config.resume:
        overrides["resume"] = str(Path(config.resume).expanduser().resolve())
    else:
        # What is missing, or too little for so many, is said here and at once.
        run_partition(config, load_run_dataset(config), num_clients)
        require_output_folder(Path(str(overrides["output-dir"])))
    with private_home() as (home, environment):
        plan = _plan(config, environment, cpus_per_client, gpus_per_client)
        on_line(f"INFO : {plan.line}")
        environment |= plan.environment
        if config.compile:
            from fedbnn_core.training.compilation import compile_cache

            environment["TORCHINDUCTOR_CACHE_DIR"] = compile_cache()
        launchers = home / "launchers"
        launchers.mkdir(mode=0o700)
        write_quick(launchers, "flwr-simulation")
        environment["PATH"] = os.pathsep.join([str(launchers), environment["PATH"]])
        _start_superlink(home, environment)
        app = stage_app(home)
        overrides_file = write_overrides(home / "overrides.toml", overrides)
        federation = (
            f"num-supernodes={num_clients} "
            f"client-resources-num-cpus={cpus_per_client:g} "
            f"client-resources-num-gpus={plan.gpus_per_client}"
        )
        command = [flower_command("flwr"), "run", str(app), "--stream"]
        command += ["-c", str(overrides_file), "--federation-config", federation]
        directory = None
        for line in _follow(command, environment):
            directory = directory_in(line) or directory
            on_line(line)
        status = _run_status(environment)
    return SimulationResult(status == "finished:completed", status, directory)


def _plan(
    config: RunConfig,
    environment: Mapping[str, str],
    cpus_per_client: float,
    gpus_per_client: float | None,
) -> ClientPlan:
    """Say where clients train; build the network only if a GPU's memory counts."""
    machine = Machine("cpu", "as configured")
    if config.device != "cpu":
        machine = look_around(environment)
    client_bytes = 0
    if machine.gpus:
        from fedbnn_core.methods import create_method
        from fedbnn_core.training.memory import training_bytes

        dataset = load_run_dataset(config)
        method = create_method(config, dataset.input_shape, dataset.num_classes)
        client_bytes = training_bytes(
            method.new_model,
            dataset.input_shape,
            batch_size=config.batch_size,
            momentum=config.momentum > 0,
        )
    return plan_clients(
        config,
        machine,
        client_bytes=client_bytes,
        cpus_per_client=cpus_per_client,
        gpus_per_client=gpus_per_client,
        visible=environment.get("CUDA_VISIBLE_DEVICES"),
    )


def _start_superlink(home: Path, environment: Mapping[str, str]) -> None:
    """Start the SuperLink where ``flwr run`` looks for it, and wait for it."""
    port = environment[PORT]
    log = home / "superlink.log"
    log.touch()
    command = [flower_command("flower-superlink"), "--insecure", "--simulation"]
    command += ["--isolation", "subprocess", "--host", "127.0.0.1", "--port", port]
    # Rotated, or the log of a run of weeks would fill the disk.
    command += ["--log-file", str(log), "--log-rotation-interval-hours", "24"]
    command += ["--log-rotation-backup-count", "1"]
    # Ended with the home's other processes.
    process = subprocess.Popen(  # noqa: S603
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    deadline = time.monotonic() + _START_SECONDS
    while not _answers(int(port)):
        if process.poll() is not None:
            told = log.read_text(encoding="utf-8", errors="replace").splitlines()
            raise RunError(
                f"Flower's SuperLink ended with exit code {process.returncode} when it "
                f"was started; its last words: {' '.join(told[-5:]) or 'none'}"
            )
        if time.monotonic() > deadline:
            raise RunError(
                f"Flower's SuperLink did not answer within {_START_SECONDS:.0f} s; is "
                "the machine too busy? Try again when it has less to do"
            )
        time.sleep(0.1)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _follow(command: list[str], environment: dict[str, str]) -> Iterator[str]:
    """Run a command and yield its output line by line."""
    with started(command, environment) as process:
        assert process.stdout is not None  # noqa: S101  we asked for a pipe
        for line in process.stdout:
            yield line.rstrip("\n")


def _run_status(environment: dict[str, str]) -> str:
    """Ask Flower how the newest run ended: its CLI exits 0 even if it failed."""
    try:
        answer = subprocess.run(  # noqa: S603
            [flower_command("flwr"), "ls", "--format", "json"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_STATUS_SECONDS,
        )
        runs: list[dict[str, Any]] = json.loads(answer.stdout)["runs"]
        return str(runs[0]["status"])
    except (ValueError, KeyError, IndexError, subprocess.TimeoutExpired):
        return "unknown"

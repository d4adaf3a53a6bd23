"""What can be known before Flower starts, which takes it 15 to 40 seconds."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedbnn_core.config import RunConfig
from fedbnn_core.errors import ConfigError

if TYPE_CHECKING:
    from fedbnn_core.runs.directory import RunDirectory

__all__ = ["check_checkpoints", "check_machine", "check_packages", "check_space"]

# No run of a known network needs that much; below it the exact need is worth torch.
_PLENTY_BYTES = 20 * 10**9


def check_packages(config: RunConfig) -> None:
    """Raise `ConfigError` unless the packages that the config asks for are there."""
    needed = []
    if config.privacy != "none":
        needed.append(("dp_accounting", "privacy", "fedbnn[privacy]"))
    if config.tracker != "none":
        needed.append((config.tracker, "tracker", config.tracker))
    for module, key, package in needed:
        if find_spec(module) is None:
            raise ConfigError(
                f"{key} = {getattr(config, key)!r} needs {module}, which is not "
                f"installed; install it with: pip install '{package}', or set {key} to "
                "'none'"
            )


def check_machine(
    config: RunConfig, *, cpus_per_client: float, gpus_per_client: float
) -> None:
    """Raise `ConfigError` unless this machine can hold one client.

    Parameters
    ----------
    config : names the device that trains.
    cpus_per_client, gpus_per_client : what a client occupies; negative GPUs are not
        asked for.
    """
    if config.device not in ("auto", "cpu"):
        from fedbnn_core.training.device import choose_device

        choose_device(config.device)
    if cpus_per_client <= 0:
        raise ConfigError(
            f"--cpus-per-client must be above 0, got {cpus_per_client:g}; a share such "
            "as 0.5 lets clients share a CPU"
        )
    if os.environ.get("RAY_ADDRESS", "local") != "local":
        return  # A cluster has other machines, too.
    cpus = os.cpu_count() or 1
    if cpus_per_client > cpus:
        raise ConfigError(
            f"--cpus-per-client is {cpus_per_client:g} and this machine has {cpus}: no "
            "client could ever start"
        )
    if gpus_per_client > 0 and shutil.which("nvidia-smi") is None:
        raise ConfigError(
            f"--gpus-per-client is {gpus_per_client:g} and this machine has no GPU; "
            "leave the option out"
        )


def check_space(config: RunConfig, clients: int) -> None:
    """Raise `RunError` unless the run's files have room where they go."""
    folder = Path(config.resume or config.output_dir).expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    if shutil.disk_usage(folder).free >= _PLENTY_BYTES:
        return
    from fedbnn_core.files import require_space
    from fedbnn_core.methods import create_method
    from fedbnn_core.runs.dataset import load_run_dataset
    from fedbnn_core.server.opening import space_needed

    data = load_run_dataset(config)
    template = create_method(config, data.input_shape, data.num_classes).template
    files = folder.rglob("*.safetensors") if config.resume else ()
    there = sum(file.stat().st_size for file in files)
    require_space(folder, space_needed(config, template, clients) - there)


def check_checkpoints(directory: "RunDirectory") -> list[str]:
    """Return the damages of a stopped run's checkpoints.

    Raises
    ------
    RunError
        No checkpoint is usable, or another process writes to the run.
    """
    from fedbnn_core.server.checkpoint import CheckpointFolder

    directory.lock()
    try:
        folder = CheckpointFolder(
            directory.path / "checkpoints",
            keep=1,
            best_copy=directory.path / "best.safetensors",
        )
        return folder.require_usable()
    finally:
        directory.release()

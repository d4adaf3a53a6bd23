"""Which GPUs a simulation uses, and how many clients train there at once.

torch is asked what it can compute on, Ray what it can hand out. Both are asked in a
process of their own: the launcher holds no GPU memory while the clients train.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from logging import ERROR
from pathlib import Path

from fedbnn_core.config import RunConfig
from fedbnn_core.errors import ConfigError

__all__ = ["GPU", "ClientPlan", "Machine", "look_around", "plan_clients"]

ONLY_GPU = "FEDBNN_ONLY_GPU"
"""Names the device, such as cuda:1, that is the only visible one in a simulation.
`fedbnn_core.training.device` reads it, so that its number there is 0."""
_DRIVERS = ("nvidia*", "nvhost*", "nvmap", "dxg", "kfd", "dri/render*", "accel*")
"""Device files of GPU drivers; where Linux has none of them, torch need not be asked,
which takes seconds."""

_PROCESS_BYTES = 600 * 2**20
"""What torch and its libraries occupy on a GPU in every process, before any tensor."""
_USABLE = 0.9
_MOST_PER_GPU = 5
"""More processes on one GPU only wait for each other."""
_LOOK_SECONDS = 300.0


@dataclass(frozen=True)
class GPU:
    """A GPU that torch can train on."""

    name: str
    free_bytes: int


@dataclass(frozen=True)
class Machine:
    """What torch and Ray find here."""

    device: str
    """What device = "auto" would be: cpu, cuda, xpu, ..."""
    reason: str
    """Why."""
    gpus: list[GPU] = field(default_factory=list)
    """CUDA or ROCm devices in torch's order."""
    ray_gpus: float = 0.0
    """GPUs that Ray hands out to clients."""


@dataclass(frozen=True)
class ClientPlan:
    """What a simulated client gets."""

    gpus_per_client: float
    """The share of a GPU that Ray reserves for a client."""
    environment: dict[str, str]
    """Variables of the simulation's processes, beyond the usual ones."""
    line: str
    """Device, clients at once and why, for the user."""


def plan_clients(
    config: RunConfig,
    machine: Machine,
    *,
    client_bytes: int,
    cpus_per_client: float,
    gpus_per_client: float | None = None,
    visible: str | None = None,
) -> ClientPlan:
    """Say where the clients of a simulation train and how many at once.

    Parameters
    ----------
    config : of the run; its ``device`` counts.
    machine : what is here.
    client_bytes : memory of one client's training step.
    cpus_per_client : CPUs that Ray reserves for a client.
    gpus_per_client : the user's own choice; None: by memory.
    visible : the variable CUDA_VISIBLE_DEVICES; None: not set.

    Raises
    ------
    ConfigError
        The device or the share asked for is not there.
    """
    kind, _, number = config.device.partition(":")
    wants_gpu = kind == "cuda" or (kind == "auto" and machine.device == "cuda")
    if not wants_gpu:
        if gpus_per_client:
            raise ConfigError(
                f"clients cannot have {gpus_per_client:g} GPUs each: device = "
                f"{config.device!r} and {machine.reason}"
            )
        device = machine.device if kind == "auto" else config.device
        why = machine.reason if kind == "auto" else "as configured"
        at_once = _by_cpus(cpus_per_client)
        return ClientPlan(0.0, {}, _line(device, at_once, f"one per CPU; {why}"))
    gpus = list(machine.gpus)
    environment: dict[str, str] = {}
    if number:
        gpus, environment = _only(int(number), gpus, visible, config.device)
    ray_gpus = min(machine.ray_gpus, len(gpus))
    if kind == "auto" and ray_gpus < 1:
        line = _line("cpu", _by_cpus(cpus_per_client), "Ray finds no GPU to hand out")
        return ClientPlan(0.0, {"CUDA_VISIBLE_DEVICES": ""}, line)
    if not gpus or ray_gpus < 1:
        found = machine.reason if not gpus else "Ray finds no GPU to hand out"
        raise ConfigError(
            f"device = {config.device!r} cannot be had in a simulation: {found}; set "
            "device to 'cpu'"
        )
    free = min(gpu.free_bytes for gpu in gpus)
    if gpus_per_client is None:
        count, why = _by_memory(client_bytes, free)
    else:
        count = max(1, int(1 / gpus_per_client)) if gpus_per_client > 0 else 0
        why = f"{gpus_per_client:g} GPU each, as asked"
        if not count:
            raise ConfigError("clients that train on a GPU need a share of it")
    share = (
        math.floor(1e4 / count) / 1e4 if gpus_per_client is None else gpus_per_client
    )
    at_once = min(int(ray_gpus * count), _by_cpus(cpus_per_client))
    title = f"{gpus[0].name}" + (f" x {len(gpus)}" if len(gpus) > 1 else "")
    return ClientPlan(share, environment, _line(title, at_once, why))


def _only(
    number: int, gpus: Sequence[GPU], visible: str | None, device: str
) -> tuple[list[GPU], dict[str, str]]:
    """Return one GPU and the variables that hide the others and say that they do."""
    if number >= len(gpus):
        raise ConfigError(
            f"device = {device!r}, but torch finds {len(gpus)} GPUs here, numbered "
            "from 0"
        )
    names = visible.split(",") if visible else [str(n) for n in range(len(gpus))]
    return [gpus[number]], {
        "CUDA_VISIBLE_DEVICES": names[number].strip(),
        ONLY_GPU: device,
    }


def _by_memory(client_bytes: int, free: int) -> tuple[int, str]:
    """Return how many clients train on one GPU at once; the server is there, too."""
    each = client_bytes + _PROCESS_BYTES
    fit = int(_USABLE * free / each) - 1
    count = max(1, min(_MOST_PER_GPU, fit))
    why = f"about {each / 1e9:.1f} GB each and for the server, {free / 1e9:.1f} GB free"
    if fit < 1:
        why += "; that may be too little: use a smaller batch-size"
    return count, why


def _by_cpus(cpus_per_client: float) -> int:
    if cpus_per_client <= 0:
        return sys.maxsize
    return max(1, int((os.cpu_count() or 1) / cpus_per_client))


def _line(device: str, at_once: int, why: str) -> str:
    return f"Clients train on {device}, {at_once} at once ({why})."


# In a process of its own -----------------------------------------------------------


def look_around(environment: Mapping[str, str]) -> Machine:
    """Ask torch, and Ray if there is a GPU, what they find.

    Raises
    ------
    ConfigError
        They do not answer.
    """
    if sys.platform == "linux" and not any(
        True for pattern in _DRIVERS for _ in Path("/dev").glob(pattern)
    ):
        return Machine("cpu", "this machine has no GPU driver")
    command = [sys.executable, "-m", __name__]
    try:
        answer = subprocess.run(  # noqa: S603
            command,
            env=dict(environment),
            capture_output=True,
            text=True,
            check=True,
            timeout=_LOOK_SECONDS,
        )
        found = json.loads(answer.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        tail = " ".join(error.stderr.splitlines()[-3:])
        raise ConfigError(
            f"torch or Ray failed when asked for GPUs: {tail}; set device to 'cpu'"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"torch and Ray did not say within {_LOOK_SECONDS:.0f} s what GPUs there "
            "are; set device to 'cpu'"
        ) from error
    gpus = [GPU(**gpu) for gpu in found.pop("gpus")]
    return Machine(gpus=gpus, **found)


def _look() -> Machine:
    import torch

    from fedbnn_core.training.device import explain_device

    choice = explain_device("auto")
    if choice.device.type != "cuda":
        return Machine(choice.device.type, choice.reason)
    gpus = [
        GPU(torch.cuda.get_device_name(n), torch.cuda.mem_get_info(n)[0])
        for n in range(torch.cuda.device_count())
    ]
    return Machine("cuda", choice.reason, gpus, _ray_gpus())


def _ray_gpus() -> float:
    import ray

    ray.init(include_dashboard=False, log_to_driver=False, logging_level=ERROR)
    try:
        resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
        return float(resources.get("GPU", 0.0))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    print(json.dumps(asdict(_look())))

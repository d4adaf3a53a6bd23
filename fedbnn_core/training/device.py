"""Where a network trains, and what its process does with freed memory."""

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F

from fedbnn_core.errors import ConfigError

__all__ = [
    "DeviceChoice",
    "choose_device",
    "explain_device",
    "keep_freed_memory",
    "set_deterministic",
]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGEST = 2**31 - 1
_UNPROVEN = ("mps",)
"""Accelerators that "auto" leaves alone: nobody has trained these networks there."""


@dataclass(frozen=True)
class DeviceChoice:
    """Where to train, and why there."""

    device: torch.device
    reason: str
    lies_idle: bool = False
    """Whether an accelerator is here that is not used."""


def choose_device(name: str) -> torch.device:
    """Return the device for a value of the config key ``device``.

    See `explain_device`, which also says why.
    """
    return explain_device(name).device


def explain_device(name: str) -> DeviceChoice:
    """Return the device for a value of the config key ``device``, and why.

    "auto" is the accelerator, if there is one that does a small training step, else
    the CPU. Any other name is taken at its word.

    Raises
    ------
    ConfigError
        The named device cannot train here; the message says why.
    """
    if name == os.environ.get("FEDBNN_ONLY_GPU"):
        # A simulation hides the other GPUs, so that this one is number 0.
        name = name.partition(":")[0]
    if name != "auto":
        return DeviceChoice(_named(name), "as configured")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return _without_accelerator()
    if accelerator.type in _UNPROVEN:
        return DeviceChoice(
            torch.device("cpu"),
            f"training on {accelerator.type} is unproven; device={accelerator.type} "
            "tries it",
            lies_idle=True,
        )
    problem = _trial(accelerator)
    if problem:
        return DeviceChoice(
            torch.device("cpu"),
            f"{accelerator} fails a small training step: {problem}",
            lies_idle=True,
        )
    return DeviceChoice(accelerator, f"{_title(accelerator)} is there and works")


def _named(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"config key 'device' must be auto, cpu, cuda, cuda:1, mps, xpu, ...; got "
            f"{name!r}"
        ) from error
    if device.type == "cpu":
        return device
    problem = _trial(device)
    if problem:
        raise ConfigError(
            f"device = {name!r} cannot train here: {problem}; set device to 'auto' or "
            "'cpu'"
        )
    return device


@cache
def _trial(device: torch.device) -> str:
    """Do one small training step there; return what went wrong, or nothing.

    A driver that is too old or a GPU of an architecture that this torch was not built
    for shows itself at the first operation, not before.
    """
    try:
        image = torch.ones(2, 1, 4, 4, device=device)
        weight = torch.ones(2, 1, 3, 3, device=device, requires_grad=True)
        out = F.conv2d(image, weight, padding=1).flatten(1) @ torch.ones(
            32, 2, device=device
        )
        out.sum().backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None  # noqa: S101  backward has just made it
        right = weight.grad[0, 0, 1, 1].item() == 64.0
    # Whatever a driver raises, the device cannot be used.
    except Exception as error:
        first = f"{error}".strip().partition("\n")[0].partition(". ")[0]
        return first or type(error).__name__
    return "" if right else "it computes wrong results"


def _without_accelerator() -> DeviceChoice:
    """Take the CPU and say why, as far as this machine tells."""
    cpu = torch.device("cpu")
    # The driver's device files are there even if a process may not see the GPU.
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        return DeviceChoice(cpu, "torch finds no accelerator")
    if torch.version.cuda is None:
        why = (
            f"torch {torch.__version__} was built without CUDA; `make setup "
            "TORCH=cu126` installs one that was"
        )
    elif os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        why = (
            "CUDA_VISIBLE_DEVICES hides it; under `flwr run` each client needs a share "
            "of it: --federation-config 'client-resources-num-gpus=0.2 ...'"
        )
    else:
        why = _trial(torch.device("cuda"))
    return DeviceChoice(cpu, f"an NVIDIA GPU is here, but {why}", lies_idle=True)


def _title(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def set_deterministic() -> None:
    """Let torch choose operations that give the same bits every time.

    An operation that has no such form goes on with a warning of torch that names it.
    """
    # cuBLAS reads it when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # No code here reads memory that it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


def keep_freed_memory() -> bool:
    """Tell glibc to reuse freed blocks; return False where there is no glibc.

    Training allocates and frees the same megabytes in every step. glibc hands such
    blocks back to the system, and the next step pays for fresh pages: measured on CNN4,
    67,000 page faults and a quarter of the time of a binary epoch.

    The process's peak memory stays the same: that of one training step.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = (
        (_M_MMAP_THRESHOLD, 2**30),
        (_M_TRIM_THRESHOLD, _LARGEST),
        (_M_TOP_PAD, 64 * 2**20),
    )
    # Every setting is made, whatever became of the one before.
    accepted = [mallopt(option, value) == 1 for option, value in settings]
    return all(accepted)

"""Where a network trains, and what its process does with freed memory."""

import ctypes
import sys

import torch

from fedbnn_core.errors import ConfigError

__all__ = ["choose_device", "keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGEST = 2**31 - 1


def choose_device(name: str) -> torch.device:
    """Return the device for "auto" (the first accelerator, else the CPU) or a name.

    Raises
    ------
    ConfigError
        This machine has no such device.
    """
    if name != "auto":
        try:
            # Only an array on it shows that a device is really there.
            torch.empty(1, device=name)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).split("\n")[0]
            raise ConfigError(
                f"device = {name!r} cannot be used here: {reason}; set device to "
                "'auto' or 'cpu'"
            ) from error
        return torch.device(name)
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None:
            return accelerator
    return torch.device("cpu")


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

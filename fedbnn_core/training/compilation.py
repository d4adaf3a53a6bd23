"""Let torch.compile fuse a network's passes, and keep what it compiled."""

import logging
import os
from pathlib import Path

from torch import nn

from fedbnn_core.binary.model import binary_layers

__all__ = ["compile_cache", "compile_steps"]

_CACHE = "TORCHINDUCTOR_CACHE_DIR"

logger = logging.getLogger(__name__)


def compile_cache() -> str:
    """Return the folder where compiled passes are kept from run to run."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    usual = Path(base).expanduser() / "fedbnn" / "compiled"
    return os.environ.get(_CACHE) or str(usual)


def compile_steps(model: nn.Module) -> bool:
    """Compile a network when it is first called; return whether it will be.

    A network that trains in integers is left as it is, with a warning: its steps are
    native code that torch cannot look into.
    """
    bits = {
        layer.options.bits_for(layer.weight) for layer in binary_layers(model).values()
    }
    if bits and min(bits) < 32:
        logger.warning(
            "compile has no effect with gradient-bits = %d: these steps are native "
            "code already",
            min(bits),
        )
        return False
    os.environ[_CACHE] = compile_cache()
    model.compile()
    return True

"""Arrays by name: a network's state, an update, a reply, and their file format."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbnn_core.errors import RunError

__all__ = ["Array", "Arrays", "from_safetensors", "to_safetensors"]

Array = NDArray[Any]
Arrays = dict[str, Array]


def to_safetensors(arrays: Arrays, metadata: dict[str, str] | None = None) -> bytes:
    """Return arrays as a safetensors file: plain data, no code, never pickle."""
    from safetensors.numpy import save

    return save({k: _contiguous(v) for k, v in arrays.items()}, metadata=metadata)


def _contiguous(array: Array) -> Array:
    # ascontiguousarray turns scalars into vectors of one; keep their shape.
    return np.ascontiguousarray(array).reshape(array.shape)


def from_safetensors(content: bytes, *, path: Path) -> Arrays:
    """Read a safetensors file; raise `RunError` naming the path if it is none."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays: Arrays = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise RunError(f"{path} is no valid safetensors file: {error}") from error
    return arrays

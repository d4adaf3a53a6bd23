"""Arrays by name: a network's state, an update, a reply, and their file format."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedbnn_core.errors import RunError

__all__ = [
    "Array",
    "Arrays",
    "from_safetensors",
    "npy_bytes",
    "shape_only",
    "shapes_of",
    "to_safetensors",
]

Array = NDArray[Any]
Arrays = dict[str, Array]


def shape_only(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return a read-only array that has a shape, a type and no memory of its own."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def shapes_of(arrays: Mapping[str, Array]) -> Arrays:
    """Return `shape_only` arrays like the given ones."""
    return {name: shape_only(a.shape, a.dtype) for name, a in arrays.items()}


def npy_bytes(array: Array) -> int:
    """Return the size of an array as an npy file, the form in which Flower sends it."""
    file = io.BytesIO()
    described = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.tell() + array.nbytes


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

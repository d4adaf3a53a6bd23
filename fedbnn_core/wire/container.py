"""Many arrays as one: what a message carries in the place of each array on its own.

Flower sends, checks and stores every array as two objects of their own, each with its
calls and transactions; for the 184 arrays of a ResNet18 that takes longer than their
bytes. One array travels in pieces of some megabytes.

The container is a uint8 vector: the length of its index (4 bytes, little-endian), the
index (JSON, a list of [name, bytes]), then the arrays as npy files in that order.
"""

import io
import json
from collections.abc import Mapping

import numpy as np

from fedbnn_core.arrays import Array, npy_bytes, shape_only
from fedbnn_core.errors import ReplyError

__all__ = ["CONTAINER", "container_bytes", "pack", "unpack"]

CONTAINER = "container"
"""Name of the one array in its record."""
_LENGTH_BYTES = 4
_MAX_INDEX_BYTES = 2**21
_MAX_NPY_HEADER_BYTES = 1024


def pack(arrays: Mapping[str, Array]) -> Array:
    """Return the container of arrays: uint8 (bytes,)."""
    file = io.BytesIO()
    file.write(_start(arrays))
    for array in arrays.values():
        np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=False)
    return np.frombuffer(file.getbuffer(), np.uint8)


def container_bytes(arrays: Mapping[str, Array]) -> int:
    """Return the size of such arrays' container as an npy file; 0 without arrays."""
    if not arrays:
        return 0
    inside = len(_start(arrays)) + sum(map(npy_bytes, arrays.values()))
    return npy_bytes(shape_only((inside,), np.uint8))


def _start(arrays: Mapping[str, Array]) -> bytes:
    sizes = [[name, npy_bytes(array)] for name, array in arrays.items()]
    index = json.dumps(sizes, separators=(",", ":")).encode()
    return len(index).to_bytes(_LENGTH_BYTES, "little") + index


def unpack(content: bytes) -> dict[str, bytes]:
    """Return the npy file of each array of a container, which is an npy file itself.

    Raises
    ------
    ReplyError
        With the reason; whatever the content is, nothing larger is allocated.
    """
    data = _vector(content)
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if length > _MAX_INDEX_BYTES or start > len(data):
        raise ReplyError(
            f"the container's index has {length} bytes, the container {len(data)}; at "
            f"most {_MAX_INDEX_BYTES} are read"
        )
    sizes = _index(bytes(data[_LENGTH_BYTES:start]))
    if start + sum(sizes.values()) != len(data):
        raise ReplyError(
            f"the container's arrays have {sum(sizes.values())} bytes by its index, "
            f"got {len(data) - start}"
        )
    files = {}
    for name, size in sizes.items():
        # A copy: inside the container an array need not be aligned.
        files[name] = bytes(data[start : start + size])
        start += size
    return files


def _vector(content: bytes) -> memoryview:
    """Return the data of an npy file that holds a uint8 vector."""
    file = io.BytesIO(content[:_MAX_NPY_HEADER_BYTES])
    try:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"version {version}")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except Exception as error:
        raise ReplyError(f"the container is no npy array: {error!r:.120}") from error
    data = memoryview(content)[file.tell() :]
    if dtype != np.uint8 or shape != (len(data),):
        raise ReplyError(
            f"the container must be uint8 ({len(data)},), got {dtype} {shape!r:.80}"
        )
    return data


def _index(text: bytes) -> dict[str, int]:
    try:
        pairs = json.loads(text)
        sizes = dict(pairs)
    except (ValueError, TypeError, RecursionError) as error:
        raise ReplyError(f"the container has no index: {error!r:.120}") from error
    # type, not isinstance: True is an int.
    good = all(
        type(name) is str and type(size) is int and size >= 0
        for name, size in sizes.items()
    )
    if type(pairs) is not list or not good or len(sizes) != len(pairs):
        raise ReplyError("the container's index must name each array once, with a size")
    return sizes

"""A network's state as one string of bytes: few bits for weights, the rest as it is.

Both sides know names, shapes and types, so none of them travels: a header, then every
array in order, each of a length that its shape decides. Convolution weights, nearly all
of a network, have the bits that were asked for. The head has 16: it is small, and the
only float layer of a binary network. Vectors, scalars and counters (batch norm, mixing
scalars) travel whole: their errors would reach every output.
"""

import zlib
from dataclasses import dataclass

import numpy as np

from fedbnn_core.arrays import Array, Arrays, shape_only
from fedbnn_core.errors import WireError
from fedbnn_core.seeding import derive_seed
from fedbnn_core.wire.codec import Codec, Stamp
from fedbnn_core.wire.coding import Coding, Whole
from fedbnn_core.wire.header import HEADER_BYTES, check_header, write_header
from fedbnn_core.wire.integers import Integers
from fedbnn_core.wire.one_bit import OneBit

__all__ = ["MESSAGE", "BitCodec"]

MESSAGE = "message"
"""Name of the one array that travels, uint8."""
_HEAD_BITS = 16


@dataclass(frozen=True)
class _Part:
    """One array's place in the message."""

    shape: tuple[int, ...]
    coding: Coding
    where: slice


class BitCodec(Codec):
    """Codes a state, or the change of one.

    Parameters
    ----------
    state : arrays of the names, shapes and types that travel; values do not matter.
    bits : of a convolution's weight: 16, 8, 4 or 1.
    """

    def __init__(self, state: Arrays, bits: int) -> None:
        self._bits = bits
        self._layout = zlib.crc32(
            "\n".join(f"{n} {a.dtype.str} {a.shape}" for n, a in state.items()).encode()
        )
        self._parts: dict[str, _Part] = {}
        end = HEADER_BYTES
        for name, array in state.items():
            coding = _coding(array, bits)
            start, end = end, end + coding.size_bytes(array.shape)
            self._parts[name] = _Part(array.shape, coding, slice(start, end))
        self.sent = {MESSAGE: shape_only((end,), np.uint8)}

    @property
    def rounded(self) -> frozenset[str]:
        """Names of the arrays that do not come through as they are."""
        parts = self._parts.items()
        return frozenset(n for n, part in parts if not isinstance(part.coding, Whole))

    def encode(self, arrays: Arrays, stamp: Stamp) -> Arrays:
        """Return the message as one array of bytes."""
        pieces = [write_header(self._bits, stamp, self._layout)]
        for name, part in self._parts.items():
            pieces.append(part.coding.encode(arrays[name], _seed(stamp, name)))
        return {MESSAGE: np.frombuffer(b"".join(pieces), np.uint8)}

    def decode(self, sent: Arrays, stamp: Stamp) -> Arrays:
        """Return the arrays; the length is checked before anything is allocated."""
        expected = self.sent[MESSAGE]
        message = sent.get(MESSAGE)
        if message is None or len(sent) > 1:
            raise WireError(f"it must hold one array {MESSAGE!r}, it has {len(sent)}")
        if message.dtype != expected.dtype or message.shape != expected.shape:
            raise WireError(
                f"its message must be {expected.dtype} {expected.shape}, "
                f"got {message.dtype} {message.shape}"
            )
        data = message.tobytes()
        check_header(data, self._bits, stamp, self._layout)
        arrays: Arrays = {}
        for name, part in self._parts.items():
            try:
                arrays[name] = part.coding.decode(
                    data[part.where], part.shape, _seed(stamp, name)
                )
            except WireError as error:
                raise WireError(f"{name!r}: {error}") from error
        return arrays


def _coding(array: Array, bits: int) -> Coding:
    if array.dtype != np.float32 or array.ndim < 2 or not array.size:
        return Whole(array.dtype)
    if array.ndim == 2:
        return Integers(_HEAD_BITS)
    return OneBit() if bits == 1 else Integers(bits)


def _seed(stamp: Stamp, name: str) -> int:
    return derive_seed(stamp.seed, name)

"""The first bytes of a coded message: what it is, and where in a run it belongs."""

import struct

from fedbnn_core.errors import WireError
from fedbnn_core.wire.codec import Stamp

__all__ = ["HEADER_BYTES", "VERSION", "check_header", "write_header"]

VERSION = 1
_MAGIC = b"FBNW"
# Magic, version, bits, zero, round, sender, seed, checksum of names and shapes.
_FORMAT = struct.Struct("<4sBBHIiQI")
HEADER_BYTES = _FORMAT.size


def write_header(bits: int, stamp: Stamp, layout: int) -> bytes:
    """Return the header of a message.

    Parameters
    ----------
    bits : per weight.
    stamp : where the message belongs.
    layout : checksum of the names, shapes and types that both sides know.
    """
    return _FORMAT.pack(
        *(_MAGIC, VERSION, bits, 0, stamp.round_index, stamp.sender, stamp.seed, layout)
    )


def check_header(data: bytes, bits: int, stamp: Stamp, layout: int) -> None:
    """Raise `WireError` unless the data begins with that very header."""
    if len(data) < HEADER_BYTES:
        raise WireError(f"it has {len(data)} bytes, a header has {HEADER_BYTES}")
    names = ("magic", "version", "bits", "reserved field", "round", "sender")
    expected = _FORMAT.unpack(write_header(bits, stamp, layout))
    found = _FORMAT.unpack_from(data)
    for name, want, got in zip(
        (*names, "seed", "layout"), expected, found, strict=True
    ):
        if got != want:
            raise WireError(f"its header has the {name} {got!r}, expected {want!r}")

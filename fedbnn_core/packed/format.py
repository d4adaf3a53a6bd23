"""The layout of `.fbnn` files (FORMAT.md): records, flags and names."""

import struct
import unicodedata

from fedbnn_core.packed.graph import Kind

__all__ = [
    "AFFINE",
    "ALLOWED_FLAGS",
    "BIAS",
    "CLAMP",
    "DEPTHWISE",
    "HEADER",
    "INT8",
    "MAGIC",
    "MASK",
    "MAX_FILE_BYTES",
    "NO_SLOT",
    "POST",
    "PREFIX",
    "RECORD",
    "SCALE",
    "THRESHOLD",
    "VERSION",
    "is_control",
    "stored_name",
]

MAGIC = b"\x89FBNN\r\n\x1a"
VERSION = 1
MAX_FILE_BYTES = 2**30

NO_SLOT = 255
PREFIX = struct.Struct("<8sHHI32s")
HEADER = struct.Struct("<HHHHHBB")
RECORD = struct.Struct("<14BH")
AFFINE, SCALE, CLAMP, THRESHOLD, BIAS, DEPTHWISE, INT8, MASK = (
    1 << bit for bit in range(8)
)
POST = AFFINE | SCALE | CLAMP
ALLOWED_FLAGS = {
    Kind.INPUT: 0,
    Kind.CONV: POST | BIAS,
    Kind.BCONV: POST | THRESHOLD | BIAS | DEPTHWISE,
    Kind.BITPOOL: MASK,
    Kind.MAXPOOL: POST,
    Kind.LAYERNORM: 0,
    Kind.MEAN: POST,
    Kind.LINEAR: BIAS | INT8,
}


def stored_name(name: str) -> str:
    """Return a name as a file holds it: no control characters, 255 bytes of UTF-8."""
    plain = "".join("?" if is_control(c) else c for c in name)
    # A folder's name may have bytes that are no text; Python has surrogates for them.
    return plain.encode(errors="replace")[:255].decode(errors="ignore")


def is_control(character: str) -> bool:
    """Say whether a character could steer a terminal."""
    return unicodedata.category(character) == "Cc"

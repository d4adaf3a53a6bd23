"""The header: 28 bytes, and a reason for every field that is wrong."""

import struct
from dataclasses import replace

import pytest

from fedbnn_core.errors import WireError
from fedbnn_core.wire.codec import SERVER, Stamp
from fedbnn_core.wire.header import HEADER_BYTES, check_header, write_header

STAMP = Stamp(seed=2**62 + 5, round_index=7, sender=3)


def test_the_bytes_of_a_header():
    assert HEADER_BYTES == 28
    assert write_header(8, STAMP, 99) == struct.pack(
        "<4sBBHIiQI", b"FBNW", 1, 8, 0, 7, 3, 2**62 + 5, 99
    )
    check_header(write_header(8, STAMP, 99) + b"more", 8, STAMP, 99)
    check_header(
        write_header(1, replace(STAMP, sender=SERVER), 0),
        1,
        replace(STAMP, sender=-1),
        0,
    )


@pytest.mark.parametrize(
    ("bits", "stamp", "layout", "reason"),
    [
        (4, STAMP, 99, "bits 4, expected 8"),
        (8, replace(STAMP, seed=1), 99, "seed 1, expected 46116860184"),
        (8, replace(STAMP, round_index=6), 99, "round 6, expected 7"),
        (8, replace(STAMP, sender=4), 99, "sender 4, expected 3"),
        (8, STAMP, 98, "layout 98, expected 99"),
    ],
)
def test_a_header_of_another_message(bits, stamp, layout, reason):
    with pytest.raises(WireError, match=reason):
        check_header(write_header(bits, stamp, layout), 8, STAMP, 99)


@pytest.mark.parametrize(
    ("position", "reason"),
    [(0, "magic"), (4, "version 0, expected 1"), (7, "reserved")],
)
def test_a_header_of_something_else(position, reason):
    data = bytearray(write_header(8, STAMP, 99))
    data[position] ^= 1
    with pytest.raises(WireError, match=reason):
        check_header(bytes(data), 8, STAMP, 99)


def test_too_short():
    with pytest.raises(WireError, match="it has 5 bytes, a header has 28"):
        check_header(b"FBNW\x01", 8, STAMP, 99)

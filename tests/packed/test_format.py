"""The file format: written by hand, round trip, and hostile files."""

import hashlib
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.errors import FormatError
from fedbnn_core.packed import PackedModel, available_kernels
from fedbnn_core.packed.decode import decode
from fedbnn_core.packed.encode import encode, seal
from fedbnn_core.packed.model import _native
from fedbnn_core.packed.summary import macs
from tests.packed.graphs import CLASSES, everything

NATIVE = available_kernels()[0]


def by_hand() -> bytes:
    """Return the smallest network, byte by byte as FORMAT.md says.

    One pixel p, normalized to p / 2 - 10; logits 2v + 0.5 and -v.
    """
    body = struct.pack("<HHHHHBB", 1, 1, 1, 2, 2, 2, 4)
    body += struct.pack("<ff", 0.5, -10) + b"tiny" + b"\x02up" + b"\x04down"
    body += bytes([1, 0, 255, 255, 0, 255, 0, 0, 0, 0, 0, 0, 0, 0]) + b"\x01\x00"
    body += bytes([8, 16, 0, 255, 1, 255, 0, 0, 0, 0, 0, 0, 0, 0]) + b"\x02\x00"
    body += struct.pack("<4f", 2, -1, 0.5, 0)
    start = b"\x89FBNN\r\n\x1a" + struct.pack("<HHI", 1, 0, 48 + len(body))
    return start + hashlib.sha256(start + body).digest() + body


@pytest.mark.parametrize("kernel", available_kernels())
def test_a_file_written_by_hand(kernel: str) -> None:
    model = PackedModel(by_hand(), kernel=kernel)
    assert model.class_names == ["up", "down"]
    assert model.input_shape == (1, 1, 1)
    assert model.graph.architecture == "tiny"
    logits = model.logits(np.array([[[[30]]], [[[4]]]], np.uint8))
    np.testing.assert_array_equal(logits, [[10.5, -5], [-15.5, 8]])
    np.testing.assert_array_equal(model.predict(np.full((1, 1, 1), 4, np.uint8)), [1])


def test_decode_inverts_encode() -> None:
    data = encode(everything(37, np.random.default_rng(1)))
    graph = decode(data)
    assert encode(graph) == data
    assert graph.class_names == ["a", "b", "ç"]
    np.testing.assert_allclose(graph.std, [1 / 2.55, 1 / 5.1, 1 / 7.65], rtol=1e-6)
    np.testing.assert_allclose(graph.mean, [150 / 255, 50 / 255, 2 / 0.03 / 255], 1e-6)


def body_of(data: bytes) -> bytes:
    return data[48:]


def python_accepts(data: bytes) -> bool:
    try:
        decode(data)
    except FormatError:
        return False
    return True


def native_refusal(data: bytes, image: np.ndarray) -> str:
    """Return why the C reader refuses the file; what it accepts is run."""
    if _native is None:
        pytest.skip("the C runtime was not built")
    try:
        handle = _native.open(data, NATIVE, 1)
    except ValueError as error:
        return str(error)
    # A changed header may have made it a model of another input or output size.
    with suppress(ValueError):
        _native.logits(handle, image, False, 1, np.empty(CLASSES, np.float32))
    return ""


def small() -> bytes:
    return encode(everything(5, np.random.default_rng(2)))


def test_truncation_at_every_byte_is_refused() -> None:
    data = small()
    image = np.zeros((8, 9, 3), np.uint8)
    assert python_accepts(data)
    assert not native_refusal(data, image)
    for size in range(len(data)):
        assert not python_accepts(data[:size])
        assert native_refusal(data[:size], image)
    body = body_of(data)
    for other in (*(body[:size] for size in range(len(body))), body + b"\0"):
        assert not python_accepts(seal(other))
        assert native_refusal(seal(other), image)


def test_every_flipped_bit_breaks_the_digest() -> None:
    data = small()
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1 << at % 8
        with pytest.raises(FormatError):
            decode(bytes(broken))


def corruptions(data: bytes, count: int) -> Iterator[bytes]:
    """Yield files with 1 to 4 bytes changed and a valid digest, graph bytes often."""
    rng = np.random.default_rng(3)
    body = body_of(data)
    places = rng.integers(0, len(body), (count, 4))
    places[: count // 2] %= 140  # the header and the first records
    values = rng.integers(0, 256, (count, 4))
    values[::3] = rng.choice([0, 1, 2, 127, 128, 254, 255], values[::3].shape)
    sizes = rng.integers(1, 5, count)
    for number in range(count):
        broken = bytearray(body)
        for at, value in zip(
            places[number, : sizes[number]], values[number], strict=False
        ):
            broken[at] = value
        yield seal(bytes(broken))


def runtimes_agree(data: bytes) -> bool:
    """Return whether numpy gives the C runtime's bits; a large model is not run."""
    model = PackedModel(data, kernel="numpy")
    if sum(macs(model.graph)) > 1_000_000:
        return True
    channels, height, width = model.input_shape
    shape = (1, height, width, channels)
    pixels = np.random.default_rng(4).integers(0, 256, shape, dtype=np.uint8)
    with np.errstate(all="ignore"):  # a changed float may be huge
        expected = model.logits(pixels, layout="NHWC")
    actual = PackedModel(data, kernel=NATIVE).logits(pixels, layout="NHWC")
    return np.array_equal(actual, expected, equal_nan=True)


def test_random_corruptions_neither_crash_nor_divide_the_readers() -> None:
    image = np.zeros((8, 9, 3), np.uint8)
    accepted = 0
    for number, broken in enumerate(corruptions(small(), 100_000)):
        refusal = native_refusal(broken, image)
        accepted += not refusal
        # Reading in Python takes ten times as long. Only the C reader knows how
        # much memory its kernels take, and may refuse for that alone.
        if number % 5 == 0 and "more memory" not in refusal:
            assert python_accepts(broken) == (not refusal), refusal
        if number % 50 == 0 and not refusal:
            assert runtimes_agree(broken), number
    # Both outcomes occur, or this test would test nothing.
    assert 1000 < accepted < 99_000


INPUT, BCONV, LAYERNORM, MEAN = 1, 3, 6, 7


def record(
    kind: int,
    *,
    flags: int = 0,
    source: int = 255,
    floats: int = 255,
    bits: int = 255,
    window: tuple[int, ...] = (0,) * 7,
    channels: int = 1,
) -> bytes:
    """Return an operation's 16 bytes; a window is kernel, stride and padding."""
    head = bytes([kind, flags, source, 255, floats, bits, *window, 0])
    return head + struct.pack("<H", channels)


def hostile(side: int, operations: list[bytes], count: int | None = None) -> bytes:
    """Return a file of one class for a grey image of side x side pixels."""
    count = len(operations) if count is None else count
    body = struct.pack("<HHHHHBB", side, side, 1, 1, count, 16, 0)
    return seal(body + struct.pack("<ff", 1, 0) + b"\x01a" + b"".join(operations))


# Sixteen slots of the largest activation would need gigabytes.
MANY_SLOTS = hostile(
    4096,
    [record(INPUT, floats=slot) for slot in range(16)]
    + [record(MEAN, source=0, floats=1)],
)
# All 225 places of the kernel at once would need 0.9 GB.
LARGE_KERNEL = hostile(
    1024,
    [
        record(INPUT, bits=0),
        record(BCONV, source=0, floats=0, window=(15, 15, 1, 7, 7, 7, 7)),
        bytes(29),
        record(MEAN, source=0, floats=1),
    ],
    count=3,
)
# The 16 lanes of every position's sum would need 0.5 GB, twice.
ONE_CHANNEL_NORM = hostile(
    2048,
    [
        record(INPUT, floats=0),
        record(LAYERNORM, source=0, floats=1) + struct.pack("<fff", 1, 1, 0),
        record(MEAN, source=1, floats=0),
    ],
)


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
@pytest.mark.parametrize("kernel", dict.fromkeys((NATIVE, "numpy")))
@pytest.mark.parametrize(
    ("data", "refused"),
    [(MANY_SLOTS, True), (LARGE_KERNEL, False), (ONE_CHANNEL_NORM, False)],
    ids=["many slots", "large kernel", "one-channel norm"],
)
def test_a_small_file_cannot_reserve_much_memory(
    kernel: str, data: bytes, refused: bool, tmp_path: Path
) -> None:
    path = tmp_path / "hostile.fbnn"
    path.write_bytes(data)
    code = (
        "import resource, numpy\n"
        "from fedbnn_core.packed import PackedModel\n"
        "from fedbnn_core.errors import FormatError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        f"    model = PackedModel.load({str(path)!r}, kernel={kernel!r})\n"
        "except FormatError as error:\n"
        "    print('refused', error)\n"
        "else:\n"
        "    model.predict(numpy.zeros(model.input_shape, 'u1'), layout='NCHW')\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "assert grown < 500_000, grown\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each reserves memory
    )
    assert done.returncode == 0, done.stderr
    assert ("refused" in done.stdout) == refused


@pytest.mark.parametrize(
    "name",
    [
        *(b"\x1b[2J", b"a\nb", b"a\tb", b"\0", b"\x7f", b"\xc2\x9b"),
        *(b"\xff", b"\x80", b"\xe2\x82", b"\xc0\x80", b"\xe0\x80\x80"),
        *(b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80"),
    ],
)
def test_names_that_are_no_plain_text_are_refused(name: bytes) -> None:
    """Control characters, wrong, overlong and truncated UTF-8, surrogates."""
    body = body_of(by_hand())
    assert body.count(b"\x02up") == 1
    in_class = body.replace(b"\x02up", bytes([len(name)]) + name)
    in_architecture = body.replace(b"tiny", name, 1)
    in_architecture = body[:11] + bytes([len(name)]) + in_architecture[12:]
    image = np.zeros(1, np.uint8)
    for other in (in_class, in_architecture):
        assert not python_accepts(seal(other))
        assert "no plain UTF-8" in native_refusal(seal(other), image)


def test_every_other_name_is_accepted_and_kept() -> None:
    for name in ("", " ", "\xa0", "Ä\u0308", "\ud7ff", "\ue000", "梨", "\U0010ffff"):
        text = name.encode()
        body = body_of(by_hand()).replace(b"\x02up", bytes([len(text)]) + text)
        assert decode(seal(body)).class_names == [name, "down"]
        assert not native_refusal(seal(body), np.zeros(1, np.uint8))


def test_names_are_made_plain_when_written() -> None:
    graph = decode(by_hand())
    graph.class_names = ["a\x1b[2Jb\n", "\udcff" + "ß" * 200]
    assert decode(encode(graph)).class_names == ["a?[2Jb?", "?" + "ß" * 127]


def test_what_a_reader_would_refuse_is_not_written() -> None:
    graph = everything(5, np.random.default_rng(0))
    gain = graph.operations[1].gain
    assert gain is not None
    gain[3] = np.nan
    with pytest.raises(FormatError, match=r"packed: a number that is not finite; if"):
        encode(graph)
    graph = decode(by_hand())
    graph.input_shape = (70_000, 1, 1)
    with pytest.raises(FormatError, match="cannot be packed"):
        encode(graph)


def test_messages_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="fedbnn export"):
        PackedModel.load(tmp_path / "absent.fbnn")
    with pytest.raises(FormatError, match="magic"):
        decode(b"PK\x03\x04 something else")
    newer = bytearray(by_hand())
    newer[8] = 9
    with pytest.raises(FormatError, match="version 1, got 9"):
        decode(bytes(newer))
    damaged = bytearray(by_hand())
    damaged[-1] ^= 1
    with pytest.raises(FormatError, match="SHA-256"):
        decode(bytes(damaged))

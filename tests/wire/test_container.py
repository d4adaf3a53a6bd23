"""Many arrays as one, against numpy's own files and byte by byte."""

import io
import json

import numpy as np
import pytest

from fedbnn_core.errors import ReplyError
from fedbnn_core.wire.container import container_bytes, pack, unpack

ARRAYS = {
    "convs.0.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "ünïcode": np.array([True, False]),
    "scalar": np.array(7, np.int64),
    "empty": np.zeros((0, 5), np.float16),
    "turned": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def container(index, data=b"", *, length=None):
    """Return a container made by hand, as an npy file."""
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    count = len(text) if length is None else length
    return saved(np.frombuffer(count.to_bytes(4, "little") + text + data, np.uint8))


def test_what_comes_out_is_what_went_in():
    files = unpack(saved(pack(ARRAYS)))
    assert list(files) == list(ARRAYS)
    for name, array in ARRAYS.items():
        read = np.load(io.BytesIO(files[name]), allow_pickle=False)
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(read, array)
        assert files[name] == saved(array)


def test_its_bytes_are_the_index_and_numpy_s_files():
    files = {name: saved(array) for name, array in ARRAYS.items()}
    index = json.dumps([[n, len(f)] for n, f in files.items()], separators=(",", ":"))
    by_hand = (
        len(index).to_bytes(4, "little") + index.encode() + b"".join(files.values())
    )
    assert pack(ARRAYS).tobytes() == by_hand


@pytest.mark.parametrize("count", [0, 1, 5])
def test_its_size_is_known_beforehand(count):
    arrays = dict(list(ARRAYS.items())[:count])
    assert container_bytes(arrays) == (len(saved(pack(arrays))) if count else 0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no npy array"),
        (b"\x93NUMPY\x01\x00\xff\xff", "no npy array"),
        (saved(np.zeros(8, np.float32)), "must be uint8"),
        (saved(np.zeros((2, 4), np.uint8)), "must be uint8"),
        (saved(np.zeros(9, np.uint8))[:-1], "must be uint8"),
        (saved(np.zeros(0, np.uint8)), "index has 0 bytes, the container 0"),
        (container([], length=2**31), "index has 2147483648 bytes"),
        (container(b" " * (2**21 + 1)), "at most 2097152"),
        (container(b"{"), "no index"),
        (container(b"[" * 100_000), "no index"),
        (container(b"\xff\xfe"), "no index"),
        (container(7), "no index"),
        (container([["a"]]), "no index"),
        (container([[["a"], 1]], b"x"), "no index"),
        (container({"ab": 1, "cd": 2}), "each array once"),
        (container([["a", 1], ["a", 1]], b"xy"), "each array once"),
        (container([["a", -1], ["b", 2]], b"x"), "each array once"),
        (container([["a", True]], b"x"), "each array once"),
        (container([["a", 1.0]], b"x"), "each array once"),
        (container([[1, 1]], b"x"), "each array once"),
        (container([["a", 2]], b"x"), "2 bytes by its index, got 1"),
        (container([["a", 10**18]], b"x"), "bytes by its index"),
        (container([["a", 1]], b"xy"), "1 bytes by its index, got 2"),
    ],
)
def test_a_malformed_container_is_refused_with_the_reason(content, reason):
    with pytest.raises(ReplyError, match=reason):
        unpack(content)

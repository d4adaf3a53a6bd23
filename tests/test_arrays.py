"""Arrays in a safetensors file: read back as they were, or a clear error."""

import json

import numpy as np
import pytest

from fedbnn_core.arrays import from_safetensors, to_safetensors
from fedbnn_core.errors import RunError

ARRAYS = {
    "w": np.arange(12, dtype=np.float32).reshape(3, 4).T,
    "count": np.array(7, np.int64),
    "bits": np.array([[1, 255]], np.uint8),
    "empty": np.zeros((0, 3), np.float32),
}


def test_arrays_come_back_with_shape_type_and_values(tmp_path):
    content = to_safetensors(ARRAYS, {"round": "3"})
    got = from_safetensors(content, path=tmp_path)
    assert got.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array, strict=True)
    # The format: 8 bytes with the length of a JSON header.
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert header["__metadata__"] == {"round": "3"}
    assert header["w"]["shape"] == [4, 3]


@pytest.mark.parametrize("damage", [b"", b"nonsense", to_safetensors(ARRAYS)[:-1]])
def test_a_damaged_file_is_named(tmp_path, damage):
    path = tmp_path / "best.safetensors"
    with pytest.raises(RunError, match=r"best\.safetensors is no valid safetensors"):
        from_safetensors(damage, path=path)

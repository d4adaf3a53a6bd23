"""Archives from outside: bombs are refused before they are unpacked."""

import io
import struct
import zipfile

import numpy as np
import pytest

from fedbnn_core.data import archive
from fedbnn_core.data.archive import open_npz
from fedbnn_core.errors import DataError


def npy(shape, descr="<f4", data=b""):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data


def write(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def test_what_numpy_writes_is_read(tmp_path):
    arrays = {"x": np.arange(6).reshape(2, 3), "n": np.array(["a", "bc"])}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        with open_npz(tmp_path / "a.npz") as opened:
            for name, array in arrays.items():
                assert np.array_equal(opened[name], array)


@pytest.mark.parametrize("shape", [(10**12,), (10**6, 10**6), (2**62, 8)])
def test_a_header_that_promises_terabytes_allocates_nothing(tmp_path, shape):
    path = write(tmp_path / "bomb.npz", x=npy(shape, data=bytes(16)))
    with pytest.raises(DataError, match="promises"), open_npz(path) as opened:
        opened["x"]


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "bomb.npz", x=npy((250_000,), data=bytes(10**6)))
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(archive, "_MAX_BYTES", 10**6)
    with pytest.raises(DataError, match="unpacks to"), open_npz(path):
        pass


@pytest.mark.parametrize("content", [b"", b"nonsense", npy((1,), "|O", b"\x80\x04N.")])
def test_members_that_are_no_arrays(tmp_path, content):
    path = write(tmp_path / "odd.npz", x=content)
    wanted = pytest.raises(DataError, match=r"cannot be read as \.npz")
    with wanted, open_npz(path) as opened:
        np.array(opened["x"])


def test_a_member_that_is_no_npy_file_does_not_matter(tmp_path):
    path = tmp_path / "a.npz"
    file = io.BytesIO()
    np.save(file, np.arange(3))
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("x.npy", file.getvalue())
        zipped.writestr("README", "hello")
    with open_npz(path) as opened:
        assert opened["x"].tolist() == [0, 1, 2]

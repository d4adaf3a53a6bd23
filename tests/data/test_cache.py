"""The cache: decoded once, shared, renewed when the sources change."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.data import load_dataset
from fedbnn_core.data.cache import Allocate, Decoded, cache_folder, decode_once
from fedbnn_core.errors import DataError


def make_reader(calls: list[int], value: int = 7, count: int = 5):
    def read(allocate: Allocate) -> Decoded:
        calls.append(value)
        x_train = allocate("x_train", (count, 1, 2, 3))
        x_train[...] = value
        labels = np.arange(count)
        return Decoded(x_train, labels, x_train[:0], labels[:0], ("ä", "b"), labels * 2)

    return read


def test_decoded_once_and_equal_afterwards(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"1")
    calls: list[int] = []
    for _ in range(3):
        decoded = decode_once("x:y/z", [source], make_reader(calls)).decoded
        assert isinstance(decoded.x_train, np.memmap)
        assert (np.asarray(decoded.x_train) == 7).all()
        assert decoded.x_test.shape == (0, 1, 2, 3)
        assert decoded.class_names == ("ä", "b")
        assert decoded.writer_ids.tolist() == [0, 2, 4, 6, 8]
    assert calls == [7]
    with pytest.raises(ValueError, match="read-only"):
        decoded.x_train[0] = 1


def test_a_changed_source_replaces_its_entry(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    calls: list[int] = []
    for value in (1, 2):
        source.write_bytes(b"x" * value)
        decoded = decode_once("x", [source], make_reader(calls, value)).decoded
        assert decoded.x_train[0, 0, 0, 0] == value
    assert calls == [1, 2]
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1


def test_options_have_entries_of_their_own(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"1")
    calls: list[int] = []
    for options in ("a", "b", "a", "b"):
        decode_once("x", [source], make_reader(calls), options=options)
    assert len(calls) == 2


def test_a_failed_reader_leaves_nothing_behind(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"1")

    def read(allocate: Allocate) -> Decoded:
        allocate("x_train", (100, 1, 2, 3))
        raise DataError("damaged")

    with pytest.raises(DataError, match="damaged"):
        decode_once("x", [source], read)
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_an_unwritable_cache_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"1")
    # A folder below a file can be made by nobody, not even by root.
    monkeypatch.setenv("FEDBNN_CACHE", str(source / "cache"))
    calls: list[int] = []
    entry = decode_once("x", [source], make_reader(calls))
    assert not isinstance(entry.decoded.x_train, np.memmap)
    assert entry.mean == pytest.approx((7 / 255,))
    assert "Set FEDBNN_CACHE to a writable folder" in caplog.text
    assert calls == [7]


def test_statistics_per_channel(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"1")
    images = np.random.default_rng(0).integers(0, 256, (50, 3, 8, 8), dtype=np.uint8)
    images[:, 2] = 40

    def read(allocate: Allocate) -> Decoded:
        labels = np.zeros(50, dtype=np.int64)
        return Decoded(images, labels, images[:0], labels[:0], ("a",))

    entry = decode_once("x", [source], read)
    pixels = images / 255
    assert entry.mean == pytest.approx(tuple(pixels.mean(axis=(0, 2, 3))))
    # A constant channel has no spread; 1 keeps its normalized value finite.
    expected = (*pixels[:, :2].std(axis=(0, 2, 3)), 1.0)
    assert entry.std == pytest.approx(expected)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBNN_CACHE", "/a/b")
    assert cache_folder() == Path("/a/b")
    monkeypatch.delenv("FEDBNN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert cache_folder() == Path("/c/fedbnn")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/fedbnn")


RACE = """
import sys, time
from pathlib import Path
import numpy as np
from fedbnn_core.data.cache import Decoded, decode_once

log, source = Path(sys.argv[1]), Path(sys.argv[2])

def read(allocate):
    with log.open("a") as file:
        file.write("decoded\\n")
    time.sleep(0.3)
    x = allocate("x_train", (1000, 1, 28, 28))
    x[...] = 9
    y = np.zeros(1000, dtype=np.int64)
    return Decoded(x, y, x[:0], y[:0], ("a",))

print(int(decode_once("race", [source], read).decoded.x_train.sum(dtype=np.int64)))
"""


def test_processes_that_start_together_decode_once(cache: Path, tmp_path: Path) -> None:
    source, log = tmp_path / "source", tmp_path / "log"
    source.write_bytes(b"1")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(log), str(source)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert outputs == [str(9 * 1000 * 28 * 28)] * 4
    assert log.read_text().splitlines() == ["decoded"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_holds_no_copy_of_its_own(cache: Path, tmp_path: Path) -> None:
    images = np.ones((10_000, 1, 64, 64), dtype=np.uint8)
    path = tmp_path / "large.npz"
    np.savez(
        path,
        x_train=images,
        y_train=np.arange(10_000) % 2,
        x_test=images[:2],
        y_test=np.arange(2),
    )
    load_dataset(f"npz:{path}")
    code = (
        "import sys\n"
        "from fedbnn_core.data import load_dataset\n"
        "def private_kb():\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return int(next(l for l in lines if l.startswith('RssAnon')).split()[1])\n"
        "before = private_kb()\n"
        "data = load_dataset('npz:' + sys.argv[1])\n"
        "assert data.x_train.sum() == 10_000 * 64 * 64\n"
        "print(private_kb() - before)\n"
    )
    printed = subprocess.check_output(
        [sys.executable, "-c", code, str(path)], text=True
    )
    # 40,000 KiB of images were read; what the process owns grew by little.
    assert int(printed) < 6_000

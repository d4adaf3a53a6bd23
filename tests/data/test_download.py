"""Downloads from a real server that breaks off, resumes, lies and refuses."""

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.data import download as download_module
from fedbnn_core.data import load_dataset
from fedbnn_core.data.download import Download, downloads_of, fetch, get_dataset
from fedbnn_core.data.registry import DATASETS
from fedbnn_core.errors import DataError
from tests.data.readers.test_cifar import write_cifar10
from tests.data.readers.test_tiny_imagenet import write_tiny

CONTENT = np.random.default_rng(0).bytes(700_000)
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `files`; `break_after` bytes of the first answer, then hangs up."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.break_after: int | None = None
        self.supports_range = True
        self.ranges: list[str | None] = []

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        content = self.server.files.get(self.path[1:])
        if content is None:
            self.send_error(404)
            return
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        start = 0
        if wanted and self.server.supports_range:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = len(content)
        if self.server.break_after is not None:
            end = start + self.server.break_after
            self.server.break_after = None
        self.wfile.write(content[start:end])
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    instance = Server()
    instance.files["file.bin"] = CONTENT
    thread = threading.Thread(target=instance.serve_forever)
    thread.start()
    yield instance
    instance.shutdown()
    thread.join()
    instance.server_close()


def make(server: Server, name: str = "file.bin", md5: str = MD5) -> Download:
    return Download((server.url(name),), name, md5, "")


def test_fetches_verifies_and_reports_progress(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = fetch(make(server), tmp_path / "new", lambda *state: seen.append(state))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("file.bin", 700_000, 700_000)
    assert [file.name for file in path.parent.iterdir()] == ["file.bin"]
    # Present and whole: not fetched again.
    fetch(make(server), tmp_path / "new")
    assert len(server.ranges) == 1


def test_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.break_after = 300_000
    with pytest.raises(DataError, match="300000 of 700000"):
        fetch(make(server), tmp_path)
    assert (tmp_path / "file.bin.part").stat().st_size == 300_000
    assert fetch(make(server), tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-"]


def test_starts_over_where_the_server_cannot_resume(
    server: Server, tmp_path: Path
) -> None:
    server.supports_range = False
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    assert fetch(make(server), tmp_path).read_bytes() == CONTENT


def test_a_complete_part_is_only_verified(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch(make(server), tmp_path).read_bytes() == CONTENT


def test_a_damaged_part_is_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(b"x" * 1000)
    assert fetch(make(server), tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_is_an_error_and_leaves_nothing(
    server: Server, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="wrong checksum"):
        fetch(make(server, md5="0" * 32), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_second_mirror_is_tried(server: Server, tmp_path: Path) -> None:
    urls = (server.url("missing"), server.url("file.bin"))
    assert fetch(Download(urls, "file.bin", MD5, ""), tmp_path).is_file()


def test_offline_says_which_file_to_put_where(tmp_path: Path) -> None:
    # Port 9 of the loopback address: nobody listens.
    offline = Download(("http://127.0.0.1:9/f.zip",), "f.zip", MD5, "")
    with pytest.raises(DataError) as caught:
        fetch(offline, tmp_path)
    for part in ("http://127.0.0.1:9/f.zip", MD5, str(tmp_path), "try again"):
        assert part in str(caught.value)
    # And once it is there, it is used.
    (tmp_path / "f.zip").write_bytes(CONTENT)
    assert fetch(offline, tmp_path).read_bytes() == CONTENT


def test_only_web_addresses_are_fetched(tmp_path: Path) -> None:
    local = Download(("file:///etc/hostname",), "x", MD5, "")
    with pytest.raises(DataError, match="only http and https"):
        fetch(local, tmp_path)


def serve_archive(server: Server, folder: Path, name: str) -> Download:
    buffer = io.BytesIO()
    if name.endswith(".zip"):
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in folder.rglob("*"):
                archive.write(file, file.relative_to(folder))
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            archive.add(folder, ".")
    server.files[name] = buffer.getvalue()
    md5 = hashlib.md5(buffer.getvalue(), usedforsecurity=False).hexdigest()
    return make(server, name, md5)


@pytest.mark.parametrize("name", ["cifar10", "tiny-imagenet"])
def test_a_dataset_is_fetched_unpacked_and_loads(
    name: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, data = tmp_path / "source", tmp_path / "data"
    (write_cifar10 if name == "cifar10" else write_tiny)(source)
    archive = "a.tar.gz" if name == "cifar10" else "a.zip"
    download = serve_archive(server, source, archive)
    monkeypatch.setattr(download_module, "downloads_of", lambda _: (download,))
    files = get_dataset(name, data)
    assert all(file.is_relative_to(data) for file in files)
    assert not (data / archive).exists()
    assert len(load_dataset(name, data).y_train) in (35, 9)
    # Already here: the server is not asked again.
    asked = len(server.ranges)
    get_dataset(name, data)
    assert len(server.ranges) == asked


def test_an_archive_cannot_write_outside(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        entry = tarfile.TarInfo("../escaped")
        entry.size = 4
        archive.addfile(entry, io.BytesIO(b"evil"))
    server.files["a.tar.gz"] = buffer.getvalue()
    md5 = hashlib.md5(buffer.getvalue(), usedforsecurity=False).hexdigest()
    download = make(server, "a.tar.gz", md5)
    monkeypatch.setattr(download_module, "downloads_of", lambda _: (download,))
    with pytest.raises(DataError, match="cannot be unpacked"):
        get_dataset("cifar10", tmp_path / "data")
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_an_archive_that_is_a_bomb_is_not_unpacked(
    name: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, data = tmp_path / "source", tmp_path / "data"
    source.mkdir()
    (source / "zeros").write_bytes(bytes(2**24))
    download = serve_archive(server, source, name)
    assert len(server.files[name]) < 2**16
    monkeypatch.setattr(download_module, "downloads_of", lambda _: (download,))
    monkeypatch.setattr(download_module, "_MAX_BYTES", 2**24 - 1)
    with pytest.raises(DataError, match="unpacks to more than"):
        get_dataset("cifar10", data)
    assert not list(data.rglob("zeros"))


def test_femnist_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"preprocess\.sh") as caught:
        get_dataset("femnist", tmp_path)
    assert str(tmp_path / "femnist") in str(caught.value)


def test_every_dataset_has_a_way_to_get_it() -> None:
    for name, spec in DATASETS.items():
        files = downloads_of(name)
        assert bool(files) == bool(spec.download_bytes)
        assert files or spec.by_hand or name == "fmnist-mini"
        for file in files:
            assert len(file.md5) == 32
            assert all(url.endswith(file.filename) for url in file.urls)

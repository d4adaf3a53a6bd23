"""Files that are whole or absent, survive a power cut, and locks between processes."""

import os
import stat
import subprocess
import sys

import pytest

from fedbnn_core.errors import RunError
from fedbnn_core.files import (
    append_durably,
    locked,
    make_folder_durably,
    remove_leftovers,
    replace_file,
    write_durably,
    write_private,
)


@pytest.fixture
def synced(monkeypatch):
    """Return the folders that were synced, by inode, as they are."""
    folders, sync = [], os.fsync

    def watched(handle):
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            folders.append(status.st_ino)
        sync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    return folders


def test_new_names_are_synced_with_their_folder(tmp_path, synced):
    own = tmp_path.stat().st_ino
    append_durably(tmp_path / "log", b"1")
    assert synced == [own]
    append_durably(tmp_path / "log", b"2")
    assert synced == [own]  # The name was there.
    assert (tmp_path / "log").read_bytes() == b"12"
    make_folder_durably(tmp_path / "folder")
    make_folder_durably(tmp_path / "folder")
    assert synced == [own] * 2
    write_durably(tmp_path / "file", b"3")
    assert synced == [own] * 3


def test_a_file_that_need_not_survive_is_not_synced(tmp_path, synced):
    replace_file(tmp_path / "file", b"1", durable=False)
    assert not synced
    assert (tmp_path / "file").read_bytes() == b"1"


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace_file(path, b"old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")
    with pytest.raises(RunError, match="free some space, then try again"):
        write_durably(path, b"new", then="try again")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("write", "mode"), [(replace_file, 0o644), (write_private, 0o600)]
)
def test_who_may_read_a_file(tmp_path, write, mode):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o666)
    write(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() == b"new"


def test_a_private_file_gets_its_folder(tmp_path):
    write_private(tmp_path / "a" / "b" / "key", b"secret")
    assert (tmp_path / "a" / "b" / "key").read_bytes() == b"secret"


KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from fedbnn_core.files import replace_file
os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
replace_file(Path(sys.argv[1]), b"new")
"""


def test_what_a_killed_process_left_is_removed(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, path], check=False)
    assert len(list(tmp_path.iterdir())) == 2
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"


TRY_TO_LOCK = """
import sys
from pathlib import Path
from fedbnn_core.files import locked
try:
    with locked(Path(sys.argv[1]), wait=False):
        print("got it")
except OSError:
    print("held")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_lock_excludes_other_processes(tmp_path, kind):
    path = tmp_path / "lock"
    if kind == "folder":
        path.mkdir()

    def other():
        command = [sys.executable, "-c", TRY_TO_LOCK, path]
        return subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.strip()

    with locked(path):
        assert other() == "held"
    assert other() == "got it"


@pytest.mark.parametrize("module", ["files", "arrays", "messages", "config"])
def test_the_root_modules_load_neither_torch_nor_flower(module):
    code = (
        f"import sys, fedbnn_core.{module}; "
        "print([m for m in ('torch', 'flwr') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

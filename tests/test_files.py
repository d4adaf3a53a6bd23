"""Files that survive a power cut: what is new is synced with its folder."""

import os
import stat

import pytest

from fedbnn_core.files import append_durably, make_folder_durably, write_durably


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

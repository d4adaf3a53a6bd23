"""Keep tests out of the user's caches and data folders."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED_DATA = REPOSITORY.parent / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def private_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Point cache and data folder to empty places for the whole session."""
    base = tmp_path_factory.mktemp("private")
    before = {key: os.environ.get(key) for key in ("FEDBNN_CACHE", "FEDBNN_DATA")}
    os.environ["FEDBNN_CACHE"] = str(base / "cache")
    os.environ["FEDBNN_DATA"] = str(base / "data")
    yield base
    for key, value in before.items():
        if value is None:
            del os.environ[key]
        else:
            os.environ[key] = value


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a test a cache folder of its own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDBNN_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real datasets that developers share."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs the shared data folder beside the repository")
    return SHARED_DATA

"""Get published datasets: resumed, verified, unpacked.

Addresses and checksums are torchvision's, which keeps them current; Tiny-ImageNet,
which torchvision does not have, is listed here.
"""

import hashlib
import http.client
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbnn_core.data.loading import data_folder, find_source
from fedbnn_core.data.registry import DATASETS
from fedbnn_core.data.torchvision_compat import import_torchvision
from fedbnn_core.errors import DataError

__all__ = ["Download", "Progress", "downloads_of", "fetch", "get_dataset"]

_BLOCK = 1 << 18
_TIMEOUT_S = 30.0
_MAX_BYTES = 8 * 2**30
"""Of an archive unpacked; the largest one published has 0.7 GB."""

# Called with the file's name, bytes present and bytes in all (0 if not known).
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Download:
    """One file to fetch."""

    urls: tuple[str, ...]
    """Mirrors, tried in turn."""
    filename: str
    md5: str
    folder: str
    """Where it belongs, below the data folder."""
    wanted: str = ""
    """Of an archive, unpack only the members whose names contain this."""


def downloads_of(name: str) -> tuple[Download, ...]:
    """List the files of a dataset; empty if it cannot be downloaded."""
    if name == "tiny-imagenet":
        file = "tiny-imagenet-200.zip"
        url = f"http://cs231n.stanford.edu/{file}"
        return (Download((url,), file, "90528d7ca1a48142e341f4ef8d21d0de", ""),)
    if name not in ("fmnist", "svhn", "cifar10", "cifar100", "emnist-letters"):
        return ()
    datasets = import_torchvision("torchvision.datasets")
    if name == "fmnist":
        published = datasets.FashionMNIST
        return tuple(
            Download(
                tuple(f"{mirror}{file}" for mirror in published.mirrors),
                file,
                md5,
                "FashionMNIST/raw",
            )
            for file, md5 in published.resources
        )
    if name == "svhn":
        splits = (datasets.SVHN.split_list[split] for split in ("train", "test"))
        return tuple(Download((url,), file, md5, "svhn") for url, file, md5 in splits)
    if name == "emnist-letters":
        emnist = datasets.EMNIST
        file = emnist.url.rpartition("/")[2]
        return (Download((emnist.url,), file, emnist.md5, "EMNIST/raw", "letters"),)
    cifar = datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100
    return (Download((cifar.url,), cifar.filename, cifar.tgz_md5, ""),)


def get_dataset(
    name: str, data_dir: str | Path | None = None, progress: Progress | None = None
) -> Sequence[Path]:
    """Make sure that a dataset is on this machine.

    Parameters
    ----------
    name : str
        A named dataset.
    data_dir : str or Path, optional
        Where to put it; see `data_folder`.
    progress : callable, optional
        Told how far each file is.

    Returns
    -------
    sequence of Path
        The files that `load_dataset` will read.

    Raises
    ------
    DataError
        It cannot be downloaded; the message says which files to put where.
    """
    spec = DATASETS.get(name)
    if spec is None:
        raise DataError(
            f"There is no dataset {name!r} to get; choose one of {', '.join(DATASETS)}."
        )
    if found := find_source(spec, data_dir):
        return found[1]
    root = data_folder(data_dir)
    if spec.by_hand:
        raise DataError(
            f"{name} cannot be downloaded ready-made. {spec.by_hand} to "
            f"{root / spec.folders[0]}; then try again."
        )
    for download in downloads_of(name):
        folder = root / download.folder
        path = fetch(download, folder, progress)
        if path.suffix in (".zip", ".tgz") or path.name.endswith(".tar.gz"):
            _unpack(path, folder, download.wanted)
            path.unlink()
    found = find_source(spec, data_dir)
    if found is None:
        raise DataError(
            f"The files of {name} in {root} are incomplete; remove them and try again."
        )
    return found[1]


def fetch(download: Download, folder: Path, progress: Progress | None = None) -> Path:
    """Download one file, going on where an earlier attempt stopped.

    An unfinished file is kept as NAME.part; a finished one has the right checksum.
    """
    target = folder / download.filename
    if target.is_file() and _md5(target) == download.md5:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{download.filename}.part"
    reasons = []
    for url in download.urls:
        # A damaged beginning is only seen at the end: then once more from zero.
        for _ in range(2):
            try:
                _transfer(url, part, progress)
            except (OSError, http.client.HTTPException) as error:
                reasons.append(f"{url}: {error}")
                break
            if _md5(part) == download.md5:
                part.replace(target)
                return target
            part.unlink()
            reasons.append(f"{url}: wrong checksum")
    why = "; ".join(dict.fromkeys(reasons))
    raise DataError(
        f"Could not download {download.filename} ({why}). "
        f"Without a connection: get {download.urls[0]} elsewhere (md5 {download.md5}), "
        f"put it into {folder}, and try again."
    )


def _transfer(url: str, part: Path, progress: Progress | None) -> None:
    if not url.startswith(("http://", "https://")):
        raise OSError("only http and https are fetched")
    present = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "fedbnn"}
    if present:
        headers["Range"] = f"bytes={present}-"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  see above
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_S)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            # Nothing is left to send: the checksum decides whether it is complete.
            return
        raise
    with response:
        resumes = response.status == http.HTTPStatus.PARTIAL_CONTENT
        present = present if resumes else 0
        rest = int(response.headers.get("Content-Length") or 0)
        total = present + rest if rest else 0
        with part.open("ab" if resumes else "wb") as file:
            while block := response.read(_BLOCK):
                file.write(block)
                present += len(block)
                if progress:
                    progress(part.stem, present, total)
        if total and present < total:
            raise OSError(f"connection closed after {present} of {total} bytes")


def _md5(path: Path) -> str:
    # The publishers' checksums are md5; they guard against damage, not against forgery.
    with path.open("rb") as file:
        return hashlib.file_digest(
            file, lambda: hashlib.md5(usedforsecurity=False)
        ).hexdigest()


def _unpack(archive: Path, folder: Path, wanted: str) -> None:
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as zipped:
                files = [file for file in zipped.infolist() if wanted in file.filename]
                # zipfile reads no more of a member than the size that is given here.
                _check_size(archive, sum(file.file_size for file in files))
                # zipfile itself strips "..", drive letters and leading slashes.
                zipped.extractall(folder, files)  # noqa: S202
        else:
            with tarfile.open(archive) as tar:
                members, size = [], 0
                for member in tar:
                    # Also what is not wanted has to be unpacked to get past it.
                    size += member.size
                    _check_size(archive, size)
                    if wanted in member.name:
                        members.append(member)
                tar.extractall(folder, members, filter="data")
    except (OSError, tarfile.TarError, zipfile.BadZipFile, shutil.Error) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}") from error


def _check_size(archive: Path, size: int) -> None:
    if size > _MAX_BYTES:
        raise DataError(
            f"{archive} unpacks to more than {_MAX_BYTES} bytes; remove it and get it "
            "again."
        )

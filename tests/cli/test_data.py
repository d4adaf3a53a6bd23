"""The commands `fedbnn data` and `fedbnn partition`."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from fedbnn_core.cli import app
from fedbnn_core.data import load_dataset, load_partition, partition_indices
from tests.data.readers.test_idx import write_fmnist


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_list_says_what_is_here_and_what_would_be_downloaded(tmp_path: Path) -> None:
    write_fmnist(tmp_path / "fmnist", packed=True)
    result = run("data", "list", "--json", "--data-dir", tmp_path)
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in json.loads(result.output)}
    assert rows["fmnist"]["here"] == str(tmp_path / "fmnist")
    assert rows["fmnist-mini"]["here"].endswith("fmnist_mini.npz")
    assert rows["cifar10"]["here"] is None
    assert rows["cifar10"]["download_bytes"] == 170_498_071
    assert rows["fmnist"]["terms"].startswith("MIT")
    table = run("data", "list", "--data-dir", tmp_path).output
    for part in ("cifar100", "download, 248 MB", "here", "MIT", "folder:PATH"):
        assert part in table


def test_get_of_what_is_here_downloads_nothing(tmp_path: Path) -> None:
    write_fmnist(tmp_path / "fmnist", packed=True)
    result = run("data", "get", "fmnist", "--data-dir", tmp_path)
    assert result.exit_code == 0, result.output
    assert "30 training and 10 test images of 10 classes" in result.output


def test_get_of_an_unknown_name_lists_the_names() -> None:
    assert "fmnist-mini, fmnist, svhn" in str(run("data", "get", "x").exception)


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "label-fraction"])
def test_partition_prints_draws_and_saves(scheme: str, tmp_path: Path) -> None:
    picture, indices = tmp_path / "new" / "p.png", tmp_path / "p.npz"
    result = run(
        *("partition", "--scheme", scheme, "--clients", 25, "--seed", 3),
        *("--picture", picture, "--save", indices),
    )
    assert result.exit_code == 0, result.output
    assert "... and 5 more clients" in result.output
    expected = partition_indices(
        load_dataset("fmnist-mini").y_train, 25, scheme, seed=3
    )
    saved = load_partition(indices)
    assert all(np.array_equal(a, b) for a, b in zip(saved, expected, strict=True))
    sizes = [len(part) for part in expected]
    assert f"Samples per client {min(sizes):,}..{max(sizes):,}" in result.output
    with Image.open(picture) as image:
        # Something was drawn: more than a plain background.
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 20


def test_partition_shows_counts_where_they_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (
        *("partition", "--scheme", "label-fraction", "--clients", 100, "--all"),
        *("--picture", tmp_path / "p.svg"),
    )
    monkeypatch.setenv("COLUMNS", "140")
    wide = run(*arguments).output
    # 1000 images of a label among 30 clients: 33 or 34 each, 3 labels a client.
    rows = [line.split("│")[1:-1] for line in wide.splitlines() if "1.58 │" in line]
    assert len(rows) == 100
    for row in rows:
        counts = [int(cell) for cell in row[4:]]
        assert sorted(set(counts) - {0}) in ([33], [34], [33, 34])
        assert sum(counts) == int(row[1])
    monkeypatch.setenv("COLUMNS", "80")
    assert "█" in run(*arguments).output
    assert (tmp_path / "p.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_an_unknown_picture_format_is_an_error(tmp_path: Path) -> None:
    result = run("partition", "--picture", tmp_path / "p.nonsense")
    assert "Cannot draw" in str(result.exception)

"""The machines' files."""

import os
import platform
from pathlib import Path

import pytest

from benchmarks import _results
from benchmarks._results import Machine, Measurement, path_of, read, write


def test_what_is_written_is_read(tmp_path: Path) -> None:
    rows = [
        Measurement("layer", "3x3, 8 channels, 4x4", 1, 1, "avx2", 0.25, 9216),
        Measurement("memory", "cnn4", 1, 1, "packed", 3_200_000.0),
        Measurement("network", "cnn4", 2, 32, "packed", 1.5, 10, 20),
    ]
    machine = Machine({"cpu": "A: B", "kernel": "avx2"}, rows)
    write(machine, tmp_path / "a.csv")
    assert read(tmp_path / "a.csv") == machine


def test_files_are_named_by_cpu_and_kernel() -> None:
    about = {"cpu": "Intel(R) Xeon(R) 6 @ 2GHz", "kernel": "avx512"}
    assert path_of(about).name == "intel-r-xeon-r-6-2ghz-avx512.csv"


def test_nothing_about_the_owner_is_recorded() -> None:
    about = _results.about_this_machine("avx2", 3.2)
    text = " ".join(about.values())
    assert platform.node() not in text.split()
    assert str(Path.home()) not in text
    assert os.getcwd() not in text
    assert about["clock_ghz"] == "3.20"


@pytest.mark.parametrize("path", sorted(_results.FOLDER.glob("*.csv")), ids=str)
def test_files_are_whole(path: Path) -> None:
    machine = read(path)
    keys = {"cpu", "kernel", "flags", "compiler", "torch", "date", "load", "windows"}
    assert keys <= set(machine.about)
    assert path == path_of(machine.about)
    assert machine.rows
    assert all(row.value > 0 for row in machine.rows)

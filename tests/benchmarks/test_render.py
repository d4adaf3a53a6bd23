"""The benchmarks' tables are those of the machines' files."""

import pytest

from benchmarks._results import Machine, Measurement, read_all
from benchmarks.render import BEGIN, END, README, replace_tables, tables


def test_the_readme_shows_what_the_files_hold() -> None:
    text = README.read_text()
    shown = text.split(BEGIN)[1].split(END)[0].strip()
    assert shown == tables(read_all()).strip(), "run python -m benchmarks render"


def test_rendering_twice_changes_nothing_and_keeps_the_rest() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = replace_tables(text, "| new |\n")
    assert once == replace_tables(once, "| new |\n")
    assert once.startswith("before\n")
    assert once.endswith("after\n")
    assert "| new |" in once
    assert "old" not in once


def network(runtime: str, ms: float) -> Measurement:
    return Measurement("network", "tiny", 1, 4, runtime, ms, 1_000_000, 1234)


def test_ratios_and_rates() -> None:
    rows = [network("packed", 0.5), network("torch_fp32", 3.0)]
    rows += [network("onnxruntime_fp32", 2.0), network("onnxruntime_int8", 1.0)]
    text = tables([Machine({"cpu": "C", "kernel": "k"}, rows)])
    line = next(line for line in text.splitlines() if line.startswith("| tiny"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    # 2.0 / 0.5, 1.0 / 0.5, no OpenVINO, 4 million in half a millisecond.
    assert cells[-5:] == ["4.0x", "2.0x", "-", "8", "1,234"]
    assert cells[3:8] == ["0.500", "3.000", "2.000", "1.000", "-"]


def test_one_float_runtime_alone_claims_nothing() -> None:
    rows = [network("packed", 0.5), network("torch_fp32", 3.0)]
    assert "6.0x" not in tables([Machine({"cpu": "C", "kernel": "k"}, rows)])


@pytest.mark.parametrize(
    ("clock", "expected"), [("2.00", "| 250 |"), ("unknown", "| - |")]
)
def test_work_per_cycle(clock: str, expected: str) -> None:
    about = {"cpu": "C", "kernel": "k", "clock_ghz": clock}
    # 1,000,000 in 2 microseconds are 500 a nanosecond, of two cycles.
    row = Measurement("layer", "3x3", 1, 1, "k", 0.002, 1_000_000)
    assert tables([Machine(about, [row])]).rstrip().endswith(expected)

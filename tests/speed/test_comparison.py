"""The benchmark's bookkeeping; the speeds themselves are for `make bench`."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedbnn_core.cli import app
from fedbnn_core.errors import RunError
from fedbnn_core.packed import available_kernels
from fedbnn_core.speed.comparison import best_times, clock_hz, compare
from fedbnn_core.speed.memory import peak_memory


def test_every_runner_gets_its_windows_in_turn() -> None:
    order: list[str] = []

    def slow(name: str) -> None:
        order.append(name)
        sum(range(200_000))  # longer than a window: one call per window

    times = best_times({"a": lambda: slow("a"), "b": lambda: slow("b")}, rounds=3)
    assert order[-6:] == ["a", "b"] * 3
    assert times["a"].ms > 0


def test_json_has_the_documented_keys() -> None:
    result = CliRunner().invoke(
        app, ["bench", "--model", "cnn4", "--rounds", "1", "--json"]
    )
    assert result.exit_code == 0, result.output
    line = json.loads(result.stdout)
    assert line["model"] == "cnn4"
    assert (line["threads"], line["batch"]) == (1, 1)
    assert line["kernel"] == available_kernels()[0]
    if line["onnxruntime_fp32_ms"] is not None:
        fastest = min(line["torch_fp32_ms"], line["onnxruntime_fp32_ms"])
        speedup = fastest / line["packed_ms"]
        assert line["speedup_vs_best_float32"] == pytest.approx(speedup)
        speedup = line["onnxruntime_int8_ms"] / line["packed_ms"]
        assert line["speedup_vs_int8"] == pytest.approx(speedup)
    # 10,105,344 binary and 2,560 float multiplications.
    rate = 10_107_904 / line["packed_ms"] / 1e6
    assert line["gmacs_per_second"] == pytest.approx(rate)
    assert 40_000 < line["file_bytes"] < 62_500


def test_without_onnx_runtime_nothing_is_claimed_about_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    arguments = ["bench", "--model", "cnn4", "--rounds", "1"]
    line = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert line["torch_fp32_ms"] > 0
    assert line["speedup_vs_best_float32"] is None
    assert "pip install 'fedbnn[bench]'" in CliRunner().invoke(app, arguments).stdout


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_memory_is_that_of_the_weights_at_least_and_little_more() -> None:
    sizes = peak_memory("cnn4")
    # 390,880 numbers: 0.06 MB packed, 1.56 MB as float32.
    assert sizes["packed"] is not None
    assert sizes["packed"] < 1.5e6
    assert sizes["torch_fp32"] is not None
    assert 1.5e6 < sizes["torch_fp32"] < 30e6


def test_unknown_model() -> None:
    with pytest.raises(RunError, match="choose one of cnn4"):
        compare("lenet")


def test_clock_is_plausible() -> None:
    hz = clock_hz()
    assert hz is None or 1e7 < hz < 1e10

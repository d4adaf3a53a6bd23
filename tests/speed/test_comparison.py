"""The benchmark's bookkeeping; the speeds themselves are for `make bench`."""

import json
import sys

import pytest
from typer.testing import CliRunner

from fedbnn_core.cli import app
from fedbnn_core.errors import RunError
from fedbnn_core.packed import available_kernels
from fedbnn_core.speed.comparison import compare


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
    if line["openvino_binary_ms"] is not None:
        speedup = line["openvino_binary_ms"] / line["packed_ms"]
        assert line["speedup_vs_openvino_binary"] == pytest.approx(speedup)
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


def test_without_openvino_its_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    arguments = ["bench", "--model", "cnn4", "--rounds", "1"]
    lines = CliRunner().invoke(app, arguments).stdout.splitlines()
    row = next(line for line in lines if "OpenVINO binary" in line)
    assert "not installed" in row
    assert any("pip install 'fedbnn[bench]'" in line for line in lines)


def test_unknown_model() -> None:
    with pytest.raises(RunError, match="choose one of cnn4"):
        compare("lenet")

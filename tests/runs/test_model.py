"""Export of a finished run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedbnn_core.binary.model import deployed
from fedbnn_core.cli import app
from fedbnn_core.config import RunConfig
from fedbnn_core.data.batches import normalize
from fedbnn_core.errors import ConfigError, FedBNNError, RunError
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.networks.state import state_arrays
from fedbnn_core.packed import PackedModel
from fedbnn_core.runs.directory import RunDirectory
from fedbnn_core.runs.model import load_run_model

MEAN, STD = 0.286, 0.353


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Return the folder of a run whose models were never trained."""
    directory = RunDirectory(tmp_path)
    settings = {"method": "fedbnn", "float-first": False}
    config = RunConfig.from_mapping(settings, complete=False)
    about = {
        "config": config.to_mapping(),
        "input_shape": [1, 28, 28],
        "class_names": [f"c{i}" for i in range(10)],
        "mean": [MEAN],
        "std": [STD],
    }
    directory.write_json("config.json", about)
    for number, name in enumerate(("best", "final")):
        model = build_model(ModelSpec("cnn4", (1, 28, 28), 10), seed=number)
        directory.write_state(f"{name}.safetensors", state_arrays(model), {})
    return directory


def test_best_model_is_exported_as_evaluated(run: RunDirectory, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(tmp_path)])
    assert result.exit_code == 0, result.output
    raw = np.random.default_rng(0).integers(0, 256, (9, 1, 28, 28), dtype=np.uint8)
    model = deployed(build_model(ModelSpec("cnn4", (1, 28, 28), 10), seed=0)).eval()
    with torch.no_grad():
        expected = model(normalize(torch.from_numpy(raw), [MEAN], [STD])).numpy()
    packed = PackedModel.load(tmp_path / "model.fbnn")
    np.testing.assert_allclose(packed.logits(raw), expected, rtol=1e-4, atol=1e-6)
    assert packed.class_names == [f"c{i}" for i in range(10)]


def test_a_model_is_normalized_as_it_was_evaluated(
    run: RunDirectory, tmp_path: Path
) -> None:
    about = run.read_json("config.json")
    run.write_json("config.json", about | {"test_mean": [0.1], "test_std": [0.2]})
    assert CliRunner().invoke(app, ["export", str(tmp_path)]).exit_code == 0
    graph = PackedModel.load(tmp_path / "model.fbnn").graph
    assert (graph.mean, graph.std) == (pytest.approx([0.1]), pytest.approx([0.2]))


def test_variants_do_not_replace_the_best_model(
    run: RunDirectory, tmp_path: Path
) -> None:
    def export(*options: str) -> str:
        result = CliRunner().invoke(app, ["export", str(tmp_path), *options])
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    export()
    best = tmp_path / "model.fbnn"
    content = best.read_bytes()
    for options, name in (
        (["--model", "final"], "model-final.fbnn"),
        (["--int8-head"], "model-int8.fbnn"),
        (["--model", "final", "--int8-head"], "model-final-int8.fbnn"),
    ):
        assert name in export(*options)
        assert best.read_bytes() == content
        assert (tmp_path / name).read_bytes() != content
    best.write_bytes(b"somebody's own")
    written = export("--c", str(tmp_path / "program")).partition("It classifies")[0]
    assert "model.fbnn" not in written
    assert best.read_bytes() == b"somebody's own"
    listing = (tmp_path / "program" / "network.c").read_text()
    assert f"fbnn_model_size = {len(content)};" in listing
    (tmp_path / "program" / "main.c").write_text("mine")
    assert "Kept your main.c" in export("--c", str(tmp_path / "program"))


def test_a_model_that_cannot_be_written_is_explained(
    run: RunDirectory, tmp_path: Path
) -> None:
    output = tmp_path / "absent" / "x.fbnn"
    result = CliRunner().invoke(app, ["export", str(tmp_path), "-o", str(output)])
    assert isinstance(result.exception, FedBNNError)
    assert "cannot write" in str(result.exception)
    assert "export again" in str(result.exception)
    (tmp_path / "model.fbnn").mkdir()  # a folder cannot be replaced by a file
    result = CliRunner().invoke(app, ["export", str(tmp_path)])
    assert "cannot write" in str(result.exception)
    assert not list(tmp_path.glob("*.tmp"))


def test_a_model_with_nan_is_not_exported(run: RunDirectory, tmp_path: Path) -> None:
    state = run.read_state("best.safetensors")
    state["norms.3.weight"][0] = np.nan
    run.write_state("best.safetensors", state, {})
    result = CliRunner().invoke(app, ["export", str(tmp_path)])
    assert isinstance(result.exception, FedBNNError)
    assert "not finite" in str(result.exception)
    assert not (tmp_path / "model.fbnn").exists()


def test_final_model_takes_the_signs_of_the_standardised_weights(
    run: RunDirectory, tmp_path: Path
) -> None:
    output = tmp_path / "final.fbnn"
    arguments = ["export", str(tmp_path), "-o", str(output), "--model", "final"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    graph = PackedModel.load(output).graph
    weight = run.read_state("final.safetensors")["convs.1.weight"]
    centred = weight - weight.mean(axis=(1, 2, 3), keepdims=True)
    bits = np.unpackbits(graph.operations[3].bits, bitorder="little")
    expected = (centred >= 0).transpose(0, 2, 3, 1).ravel()
    assert (bits == expected).mean() > 0.9999  # a mean of float32 rounds


def test_errors_say_what_to_do(run: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run directory"):
        load_run_model(tmp_path / "absent")
    with pytest.raises(ConfigError, match="best"):
        load_run_model(tmp_path, which="worst")
    about = json.loads((tmp_path / "config.json").read_text())
    about["config"]["method"] = "fedavg"
    run.write_json("config.json", about)
    with pytest.raises(ConfigError, match="trains a float network"):
        load_run_model(tmp_path)

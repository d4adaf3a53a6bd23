"""The commands around a packed model, on a model written to disk."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedbnn_core.cli import app
from fedbnn_core.errors import DataError, FedBNNError
from fedbnn_core.packed import PackedModel
from fedbnn_core.packed.format import encode
from tests.packed.graphs import Conv, conv_graph, everything


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.fbnn"
    path.write_bytes(encode(everything(16, np.random.default_rng(0))))
    return path


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    assert result.exit_code == 0
    return result.stdout


def test_predict_reads_converts_and_resizes_images(model: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    exact = rng.integers(0, 256, (8, 9, 3), dtype=np.uint8)
    Image.fromarray(exact).save(tmp_path / "exact.png")
    grey = Image.fromarray(rng.integers(0, 256, (30, 20), dtype=np.uint8))
    grey.save(tmp_path / "grey.jpg")
    files = [tmp_path / "exact.png", tmp_path / "grey.jpg"]
    found = json.loads(invoke("predict", model, *files, "--top", 2, "--json"))
    assert [entry["image"] for entry in found] == [str(path) for path in files]
    packed = PackedModel.load(model)
    logits = packed.logits(exact)[0].astype(np.float64)
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    best = found[0]["classes"]
    assert [entry["class"] for entry in best] == [
        packed.class_names[i] for i in np.argsort(-shares)[:2]
    ]
    assert best[0]["probability"] == pytest.approx(shares.max(), rel=1e-5)
    table = invoke("predict", model, files[0])
    assert "100.0 %" in table
    assert str(files[0]) in "".join(
        line.split("│")[1].strip() for line in table.splitlines() if "│" in line
    )


def test_predict_explains_what_it_cannot_read(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(DataError, match="cannot read the image"):
        invoke("predict", model, tmp_path / "text.png")


def test_info_counts_everything(model: Path) -> None:
    about = json.loads(invoke("info", model, "--json"))
    size = model.stat().st_size
    assert about["file_bytes"] == size
    # Two 3x3 convolutions of 16 x 16 channels, a 1x1 one, and a depthwise one.
    assert about["binary_weights"] == 2 * 9 * 256 + 256 + 9 * 16
    names = sum(1 + len(name.encode()) for name in about["class_names"])
    layers = sum(layer["bytes"] for layer in about["layers"])
    assert layers + 60 + 8 * 3 + len("everything") + names == size
    assert about["sha256"] == model.read_bytes()[16:48].hex()
    assert "depthwise" in invoke("info", model)


def write_dataset(path: Path, model: PackedModel, wrong: int) -> None:
    """Write images labelled by the model itself, ``wrong`` of them wrongly."""
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (20, 6, 6, 1), dtype=np.uint8)
    labels = model.predict(images)
    labels[:wrong] = (labels[:wrong] + 1) % 3
    np.savez(
        path,
        x_train=images,
        y_train=np.arange(20) % 3,
        x_test=images,
        y_test=labels,
        class_names=np.array(model.class_names),
    )


def test_evaluate_counts_right_answers_and_draws(tmp_path: Path) -> None:
    graph, _ = conv_graph(Conv(6, 6, 1, 8, 3, padding=1), np.random.default_rng(3))
    path = tmp_path / "model.fbnn"
    path.write_bytes(encode(graph))
    write_dataset(tmp_path / "data.npz", PackedModel.load(path), wrong=5)
    dataset = f"npz:{tmp_path / 'data.npz'}"
    found = json.loads(invoke("evaluate", path, "--dataset", dataset, "--json"))
    assert found["accuracy"] == 0.75
    confusion = np.array(found["confusion"])
    assert confusion.sum() == 20
    assert np.trace(confusion) == 15
    assert found["latency_ms"] > 0
    with Image.open(found["picture"]) as picture:
        assert min(picture.size) > 200


def test_evaluate_refuses_another_dataset(model: Path) -> None:
    with pytest.raises(DataError, match="choose the dataset"):
        invoke("evaluate", model, "--dataset", "fmnist-mini")


def test_a_packed_file_becomes_a_c_program(model: Path, tmp_path: Path) -> None:
    invoke("export", model, "--c", tmp_path / "program")
    assert (tmp_path / "program" / "main.c").is_file()
    with pytest.raises(FedBNNError, match="--c FOLDER"):
        invoke("export", model)

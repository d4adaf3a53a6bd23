"""The commands around a packed model, on a model written to disk."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedbnn_core.cli import app
from fedbnn_core.data import load_local
from fedbnn_core.errors import DataError, FedBNNError
from fedbnn_core.packed import PackedModel
from fedbnn_core.packed.builder import GraphBuilder
from fedbnn_core.packed.encode import encode
from fedbnn_core.packed.graph import Graph, Kind
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


def pixels_seen(image: Path, height: int, width: int) -> np.ndarray:
    """Return the pixels that `predict` makes of a file whose darkest pixel is 0.

    The model's logits are the pixels / 16.
    """
    size = height * width
    builder = GraphBuilder()
    pixels = builder.add(Kind.INPUT, 1)
    weight = np.eye(size, dtype=np.float32)
    logits = builder.add(Kind.LINEAR, size, pixels, weight=weight)
    scale, shift = np.full(1, 1 / 16, np.float32), np.zeros(1, np.float32)
    names = [str(number) for number in range(size)]
    operations = builder.finish(logits)
    graph = Graph("eye", (height, width, 1), scale, shift, names, operations)
    path = image.with_suffix(".fbnn")
    path.write_bytes(encode(graph))
    found = json.loads(invoke("predict", path, image, "--top", size, "--json"))
    shares = {int(c["class"]): c["probability"] for c in found[0]["classes"]}
    values = 16 * np.log([shares[number] for number in range(size)])
    return np.rint(values - values.min()).reshape(height, width)


def test_predict_sees_the_pixels_that_training_saw(tmp_path: Path) -> None:
    deep, photos = tmp_path / "deep" / "a", tmp_path / "photos" / "a"
    deep.mkdir(parents=True)
    photos.mkdir(parents=True)
    levels = np.array([[0, 255, 256], [4096, 65535, 32768]], dtype=np.uint16)
    Image.fromarray(levels).save(deep / "deep.png")
    photo = Image.fromarray(np.array([[255, 0, 80], [160, 0, 0]], dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    photo.save(photos / "photo.jpg", exif=exif, quality=100)
    for path, expected, loss in (
        (deep / "deep.png", [[0, 0, 1], [16, 255, 128]], 0),
        (photos / "photo.jpg", [[160, 255], [0, 0], [0, 80]], 2),
    ):
        shape = np.shape(expected)
        seen = pixels_seen(path, *shape)
        np.testing.assert_allclose(seen, expected, rtol=0, atol=loss)
        trained = load_local(path.parent.parent).x_train[0, 0].astype(float)
        np.testing.assert_array_equal(seen, trained - trained.min())


def test_predict_explains_what_it_cannot_read(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(DataError, match="cannot read the image"):
        invoke("predict", model, tmp_path / "text.png")
    Image.new("L", (90, 90)).save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(DataError, match="decompression bomb"):
        invoke("predict", model, tmp_path / "large.png")


def test_predict_needs_no_torch(model: Path, tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    Image.new("L", (9, 8)).save(image)
    code = (
        "import sys\n"
        "from fedbnn_core.cli import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "assert not {'torch', 'flwr', 'scipy'} & set(sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, "predict", model, image],
        check=True,
        capture_output=True,
    )


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


@pytest.mark.parametrize("name", ["absent/x.png", "x.txt"])
def test_evaluate_tells_its_results_if_it_cannot_draw(
    name: str, tmp_path: Path
) -> None:
    graph, _ = conv_graph(Conv(6, 6, 1, 8, 3, padding=1), np.random.default_rng(3))
    path = tmp_path / "model.fbnn"
    path.write_bytes(encode(graph))
    write_dataset(tmp_path / "data.npz", PackedModel.load(path), wrong=5)
    arguments = ["--dataset", f"npz:{tmp_path / 'data.npz'}", "--picture"]
    table = invoke("evaluate", path, *arguments, tmp_path / name)
    assert "75.00 %" in table
    assert "not drawn: " in table
    found = json.loads(invoke("evaluate", path, *arguments, tmp_path / name, "--json"))
    assert (found["accuracy"], found["picture"]) == (0.75, None)


def test_evaluate_refuses_another_dataset(model: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="choose the dataset"):
        invoke("evaluate", model, "--dataset", "fmnist-mini")
    graph, _ = conv_graph(Conv(6, 6, 1, 8, 3, padding=1), np.random.default_rng(3))
    path = tmp_path / "named.fbnn"
    path.write_bytes(encode(graph))
    packed = PackedModel.load(path)
    packed.class_names = ["class 0", "tab\t", "class 2"]
    write_dataset(tmp_path / "data.npz", packed, wrong=0)
    arguments = ["evaluate", path, "--dataset", f"npz:{tmp_path / 'data.npz'}"]
    with pytest.raises(DataError, match=r"class 1 is 'class 1' in the model and 'tab"):
        invoke(*arguments)
    # The file has a question mark where the dataset's name has a tab.
    graph.class_names = packed.class_names
    path.write_bytes(encode(graph))
    assert "100.00 %" in invoke(*arguments)


def test_a_packed_file_becomes_a_c_program(model: Path, tmp_path: Path) -> None:
    invoke("export", model, "--c", tmp_path / "program")
    assert (tmp_path / "program" / "main.c").is_file()
    for others in ([], ["--c", tmp_path, "--model", "final"]):
        with pytest.raises(FedBNNError, match="--c FOLDER"):
            invoke("export", model, *others)


def test_evaluate_takes_photos_of_another_size_and_of_some_classes(
    model: Path, tmp_path: Path
) -> None:
    packed = PackedModel.load(model)
    names = packed.class_names[1:]
    rng = np.random.default_rng(4)
    for name in names:
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(10):
            pixels = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    dataset = f"folder:{tmp_path / 'photos'}"
    found = json.loads(invoke("evaluate", model, "--dataset", dataset, "--json"))
    assert found["images"] == 2 * len(names)
    # Row 0 is the class that nobody photographed.
    assert np.array(found["confusion"]).sum(axis=1).tolist() == [0] + [2] * len(names)
    (tmp_path / "photos" / names[0]).rename(tmp_path / "photos" / "unknown")
    with pytest.raises(DataError, match="unknown"):
        invoke("evaluate", model, "--dataset", dataset)


def test_raw_pixels_are_those_that_the_c_program_reads(
    model: Path, tmp_path: Path
) -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (8, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    target = tmp_path / "photo.raw"
    invoke("raw", model, tmp_path / "photo.png", "--output", target)
    assert target.read_bytes() == pixels.tobytes()
    told = invoke("export", model, "--c", tmp_path / "program")
    assert f"fedbnn raw {model} IMAGE" in told

"""PackedModel's interface: layouts, errors, and life without torch or a compiler."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.errors import FedBNNError
from fedbnn_core.packed import PackedModel, available_kernels
from fedbnn_core.packed.encode import encode
from tests.packed.graphs import Conv, conv_graph, everything

DATA = encode(everything(16, np.random.default_rng(0)))


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (4, 8, 9, 3), dtype=np.uint8)


def test_layouts_and_types_give_the_same_logits(images: np.ndarray) -> None:
    model = PackedModel(DATA)
    expected = model.logits(images)
    assert expected.shape == (4, 3)
    channels_first = images.transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(model.logits(channels_first), expected)
    np.testing.assert_array_equal(model.logits(images[1]), expected[1:2])
    np.testing.assert_array_equal(model.predict(images), expected.argmax(axis=1))
    scale = np.array([0.01, 0.02, 0.03])
    shift = np.array([-1.5, -1, -2])
    normalized = (images * scale + shift).astype(np.float32)
    for kind in (np.float32, np.float64):
        actual = model.logits(normalized.astype(kind), normalized=True)
        np.testing.assert_allclose(actual, expected, rtol=1e-4)
    assert model.logits(images[:0]).shape == (0, 3)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64, bool])
def test_what_may_be_no_pixel_is_refused(images: np.ndarray, kind: type) -> None:
    """Pixels between 0 and 1 would be classified, wrongly and without a word."""
    model = PackedModel(DATA)
    scaled = (images / 255).astype(kind)
    for run in (model.predict, model.logits):
        with pytest.raises(FedBNNError, match=r"expected uint8 .* normalized=True"):
            run(scaled)
    with pytest.raises(FedBNNError, match="expected uint8"):
        model.preactivations(scaled[:1])
    with pytest.raises(FedBNNError, match="expected floats with normalized=True"):
        model.predict(images, normalized=True)


def test_one_channel_needs_no_channel_axis() -> None:
    graph, _ = conv_graph(Conv(6, 5, 1, 4, 3, padding=1), np.random.default_rng(2))
    model = PackedModel(encode(graph))
    images = np.random.default_rng(3).integers(0, 256, (3, 6, 5), dtype=np.uint8)
    expected = model.logits(images[..., None])
    np.testing.assert_array_equal(model.logits(images), expected)
    np.testing.assert_array_equal(model.logits(images[0]), expected[:1])


def test_bad_input_is_explained(images: np.ndarray) -> None:
    model = PackedModel(DATA)
    with pytest.raises(FedBNNError, match=r"expected images of shape \(n, 8, 9, 3\)"):
        model.predict(images[:, :7])
    with pytest.raises(FedBNNError, match="int64; convert"):
        model.predict(images.astype(np.int64))
    with pytest.raises(FedBNNError, match="layout must be one of"):
        model.predict(images, layout="HWCN")
    with pytest.raises(FedBNNError, match="choose one of"):
        PackedModel(DATA, kernel="mmx")
    graph, _ = conv_graph(Conv(3, 3, 3, 4, 3, padding=1), np.random.default_rng(2))
    with pytest.raises(FedBNNError, match="say layout="):
        PackedModel(encode(graph)).predict(np.zeros((1, 3, 3, 3), np.uint8))


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )


def test_prediction_imports_neither_torch_nor_flower(tmp_path: Path) -> None:
    path = tmp_path / "model.fbnn"
    path.write_bytes(DATA)
    done = run_python(
        "import sys, numpy as np\n"
        "from fedbnn_core.packed import PackedModel\n"
        f"model = PackedModel.load({str(path)!r})\n"
        "labels = model.predict(np.zeros((1, 8, 9, 3), 'u1'))\n"
        "assert labels.shape == (1,)\n"
        "assert not {'torch', 'flwr', 'scipy', 'PIL'} & set(sys.modules)\n"
    )
    assert done.returncode == 0, done.stderr


def test_without_the_extension_numpy_is_used_with_one_warning(tmp_path: Path) -> None:
    path = tmp_path / "model.fbnn"
    path.write_bytes(DATA)
    done = run_python(
        "import sys\n"
        "sys.modules['fedbnn_core.packed._native'] = None\n"
        "from fedbnn_core.packed import PackedModel, available_kernels\n"
        "assert available_kernels() == ('numpy',)\n"
        f"models = [PackedModel.load({str(path)!r}) for _ in range(2)]\n"
        "assert all(model.kernel == 'numpy' for model in models)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning") == 1
    assert "Reinstall fedbnn with a C compiler" in done.stderr
    # Why Python could not import it: here, because the test says so.
    assert "import of fedbnn_core.packed._native halted" in done.stderr


@pytest.mark.skipif(available_kernels() == ("numpy",), reason="no C runtime")
def test_memory_is_reported() -> None:
    memory = PackedModel(DATA).memory_bytes()
    # The widest activation alone: 8 x 9 x 16 floats.
    assert memory["activation_bytes"] >= 8 * 9 * 16 * 4
    assert memory["weight_bytes"] >= 3 * 16 * 9 * 16 // 8

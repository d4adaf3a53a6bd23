"""Every kernel against brute force and against the numpy reference, bit for bit."""

import multiprocessing
import subprocess
import sys

import numpy as np
import pytest

from fedbnn_core.packed import PackedModel, available_kernels
from fedbnn_core.packed.encode import encode
from tests.packed.graphs import Conv, conv_graph, everything

CASES = [
    Conv(1, 1, 1, 1, 1),
    Conv(1, 1, 9, 40, 3, padding=1),
    Conv(5, 7, 3, 5, 3, padding=1),
    Conv(28, 28, 1, 32, 3, padding=1),
    Conv(8, 8, 64, 64, 3, padding=1),
    Conv(9, 6, 65, 33, 3, stride=2, padding=1),
    Conv(5, 5, 129, 66, 3, padding=1),
    Conv(4, 4, 128, 130, 1),
    Conv(13, 11, 24, 8, 2, stride=2),
    Conv(4, 4, 512, 96, 3, padding=1),
    Conv(2, 2, 3640, 5, 3, padding=1),
    Conv(7, 5, 128, 33, 1),
    Conv(1, 2, 200, 64, 1),
    Conv(3, 3, 136, 40, 3, padding=1),
    Conv(3, 5, 264, 34, 3, padding=1),
    Conv(6, 6, 96, 96, 7, padding=3, depthwise=True),
    Conv(3, 40, 130, 130, 5, padding=2, depthwise=True),
    Conv(5, 5, 17, 17, 3, stride=2, padding=1, depthwise=True),
    Conv(20, 20, 2, 2, 15, padding=7, depthwise=True),
    Conv(1, 1, 1, 1, 1, depthwise=True),
]


def brute_force(case: Conv, signs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Slide the kernel over the one-padded image with plain loops."""
    p, k = case.padding, case.kernel
    padded = np.ones((case.height + 2 * p, case.width + 2 * p, case.channels), np.int64)
    padded[p : p + case.height, p : p + case.width] = signs
    rows = (case.height + 2 * p - k) // case.stride + 1
    columns = (case.width + 2 * p - k) // case.stride + 1
    out = np.empty((rows, columns, case.out_channels), np.int64)
    for y in range(rows):
        for x in range(columns):
            top, left = y * case.stride, x * case.stride
            patch = padded[top : top + k, left : left + k]
            if case.depthwise:
                products = patch * weights[..., 0].transpose(1, 2, 0)
                out[y, x] = products.sum(axis=(0, 1))
            else:
                out[y, x] = (patch * weights).sum(axis=(1, 2, 3))
    return out


@pytest.mark.parametrize("case", CASES, ids=str)
def test_integers_equal_brute_force(case: Conv) -> None:
    rng = np.random.default_rng(7)
    graph, weights = conv_graph(case, rng)
    image = rng.standard_normal((case.height, case.width, case.channels))
    image.reshape(-1)[::5] = 0.0  # sign(0) is +1
    image.reshape(-1)[1::5] = -0.0
    expected = brute_force(case, np.where(image >= 0, 1, -1), weights)
    for kernel in available_kernels():
        model = PackedModel(encode(graph), kernel=kernel)
        found = model.preactivations(image, layout="NHWC", normalized=True)
        (sums,) = found.values()
        np.testing.assert_array_equal(sums, expected, err_msg=kernel)


@pytest.mark.parametrize("channels", [1, 7, 16, 37, 64])
@pytest.mark.parametrize("batch", [1, 7])
def test_kernels_and_threads_give_the_bits_of_the_reference(
    channels: int, batch: int
) -> None:
    rng = np.random.default_rng(channels)
    data = encode(everything(channels, rng))
    images = rng.integers(0, 256, (batch, 8, 9, 3), dtype=np.uint8)
    expected = PackedModel(data, kernel="numpy").logits(images)
    assert np.isfinite(expected).all()
    for kernel in available_kernels():
        for threads in (1, 2, 3):
            model = PackedModel(data, kernel=kernel, threads=threads)
            assert model.kernel == kernel
            actual = model.logits(images)
            assert actual.tobytes() == expected.tobytes(), (kernel, threads)


def test_threads_share_a_large_layer() -> None:
    rng = np.random.default_rng(9)
    case = Conv(32, 32, 64, 64, 3, padding=1)  # 38 million products
    graph, _ = conv_graph(case, rng)
    image = rng.standard_normal((1, 32, 32, 64)).astype(np.float32)
    expected = PackedModel(encode(graph), kernel="numpy").logits(
        image, layout="NHWC", normalized=True
    )
    for threads in (1, 2, 5):
        model = PackedModel(encode(graph), threads=threads)
        for _ in range(20):
            actual = model.logits(image, layout="NHWC", normalized=True)
            assert actual.tobytes() == expected.tobytes()


def test_a_threaded_model_that_never_runs_ends_quietly() -> None:
    data = encode(everything(16, np.random.default_rng(0)))
    script = (
        "import sys; from fedbnn_core.packed import PackedModel; "
        "data = sys.stdin.buffer.read(); "
        "[PackedModel(data, threads=4) for _ in range(50)]"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=data, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="cannot fork here"
)
def test_a_forked_child_can_use_a_threaded_model() -> None:
    rng = np.random.default_rng(0)
    model = PackedModel(encode(everything(16, rng)), threads=2)
    images = rng.integers(0, 256, (1, 8, 9, 3), dtype=np.uint8)
    expected = model.logits(images)
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=lambda: send.send(model.logits(images)))
    child.start()
    assert receive.poll(20), "the child hangs"
    np.testing.assert_array_equal(receive.recv(), expected)
    child.join()

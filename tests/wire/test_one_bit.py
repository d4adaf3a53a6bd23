"""One bit per value: right on average, exact where it must be, the same everywhere."""

import math

import numpy as np
import pytest

from fedbnn_core.errors import WireError
from fedbnn_core.wire.one_bit import OneBit

CODING = OneBit()


def both_ways(array, seed):
    return CODING.decode(CODING.encode(array, seed), array.shape, seed)


def heavy_tailed(shape, seed=0):
    return np.random.default_rng(seed).standard_t(2, shape).astype(np.float32)


def with_one_large_value(shape):
    array = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    array.flat[0] = 3 * np.linalg.norm(array)
    return array


@pytest.mark.parametrize("shape", [(1,), (31,), (8, 4, 3, 3), (64, 32, 3, 3), (4097,)])
def test_sizes_are_exact(shape):
    data = CODING.encode(heavy_tailed(shape), 3)
    assert len(data) == CODING.size_bytes(shape)
    count = math.prod(shape)
    assert len(data) <= (count + 31) / 8 + 4 * (count / 4096 + 8)


@pytest.mark.parametrize(
    "array",
    [
        np.random.default_rng(2).normal(size=(16, 12, 3, 3)).astype(np.float32),
        heavy_tailed((16, 12, 3, 3)),
        with_one_large_value((2048,)),
        with_one_large_value((40,)),
        np.eye(16, dtype=np.float32),
    ],
    ids=["normal", "heavy tail", "one large value", "small block", "sparse"],
)
def test_the_mean_of_a_thousand_encodings_is_the_input(array):
    """Within five standard errors of every value's own sample."""
    samples = np.stack([both_ways(array, seed) for seed in range(1000)])
    error = samples.mean(axis=0, dtype=np.float64) - array
    spread = samples.std(axis=0, dtype=np.float64) / math.sqrt(1000)
    allowed = 5 * spread + 1e-6 * np.abs(array).max()
    assert (np.abs(error) <= allowed).all(), np.max(np.abs(error) / allowed)


def test_the_error_is_that_of_the_theory():
    """(pi/2 - 1) |x|^2 in expectation, and the projection on x is exact."""
    array = np.random.default_rng(4).normal(size=(64, 64)).astype(np.float32)
    exact = array.astype(np.float64)
    squares = float(np.square(exact).sum())
    for seed in range(5):
        got = both_ways(array, seed).astype(np.float64)
        assert np.vdot(got, exact) == pytest.approx(squares, rel=1e-5)
        error = float(np.square(got - exact).sum()) / squares
        assert error == pytest.approx(math.pi / 2 - 1, rel=0.1)


def test_encoding_is_the_formula():
    """Against matrices written out: y = H D2 H D1 x, s = |x|^2 / |y|_1."""
    from fedbnn_core.seeding import derive_seed
    from fedbnn_core.wire.draws import random_signs

    n, seed = 64, 11
    x = np.random.default_rng(5).normal(size=n).astype(np.float32)
    h = np.array([[(-1) ** (i & j).bit_count() for j in range(n)] for i in range(n)])
    d1, d2 = (
        np.diag(random_signs(derive_seed(seed, "rotation", k), n)) for k in (1, 2)
    )
    turn = (h @ d2 @ h @ d1).astype(np.float64)
    y = turn @ x.astype(np.float64)
    scale = np.float32(np.square(x, dtype=np.float64).sum() / np.abs(y).sum())
    data = CODING.encode(x, seed)
    np.testing.assert_allclose(np.frombuffer(data[:4], "<f4"), scale, rtol=1e-6)
    assert data[4:] == np.packbits(y >= 0).tobytes()
    expected = scale * (turn.T @ np.sign(y))
    np.testing.assert_allclose(CODING.decode(data, (n,), seed), expected, rtol=1e-6)


def test_encoding_is_deterministic_and_hangs_on_the_seed():
    array = heavy_tailed((32, 9))
    assert CODING.encode(array, 1) == CODING.encode(array.copy(), 1)
    assert CODING.encode(array, 1) != CODING.encode(array, 2)


@pytest.mark.parametrize("scale", [0.0, 1e-42, 1e-30, 1e30])
def test_zeros_and_extremes_keep_their_size(scale):
    array = (heavy_tailed((40, 9)) * np.float32(scale)).astype(np.float32)
    got = both_ways(array, 1)
    assert np.isfinite(got).all()
    if scale in (0.0, 1e-42):
        np.testing.assert_allclose(got, 0, atol=1e-40)
    else:
        ratio = np.vdot(got / scale, array / scale) / np.square(array / scale).sum()
        assert ratio == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_the_receiver(value):
    array = heavy_tailed((40, 9))
    array[3, 3] = value
    data = CODING.encode(array, 1)
    with pytest.raises(WireError, match="1 scales that are none, such as nan"):
        CODING.decode(data, array.shape, 1)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0, -0.0, 1e31])
def test_bad_scales_are_refused(scale):
    data = np.array([scale], "<f4").tobytes() + bytes(4)
    with pytest.raises(WireError, match="scales that are none"):
        CODING.decode(data, (32,), 1)

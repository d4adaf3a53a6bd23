"""Whole numbers with a scale per filter: right on average, packed as described."""

import math

import numpy as np
import pytest

from fedbnn_core.errors import WireError
from fedbnn_core.wire.integers import Integers

BITS = [16, 8, 4]


def weights(shape, seed=0):
    """Return filters of very different size, one of them zero."""
    generator = np.random.default_rng(seed)
    sizes = 10.0 ** generator.uniform(-4, 3, (shape[0], *([1] * (len(shape) - 1))))
    array = (generator.normal(size=shape) * sizes).astype(np.float32)
    array[0] = 0
    return array


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(3, 3), (5, 7), (8, 4, 3, 3), (1, 1)])
def test_sizes_are_exact(bits, shape):
    data = Integers(bits).encode(weights(shape), 1)
    assert len(data) == Integers(bits).size_bytes(shape)
    assert len(data) == 4 * shape[0] + math.ceil(math.prod(shape) * bits / 8)


@pytest.mark.parametrize("bits", BITS)
def test_every_value_is_one_of_the_two_next_levels(bits):
    array, coding = weights((6, 5, 3)), Integers(bits)
    got = coding.decode(coding.encode(array, 1), array.shape, 1)
    levels = 2 ** (bits - 1) - 1
    step = np.abs(array).max(axis=(1, 2), keepdims=True).astype(np.float64) / levels
    assert (np.abs(got - array.astype(np.float64)) < step * (1 + 1e-5) + 1e-30).all()
    np.testing.assert_array_equal(got[0], 0)
    # The largest magnitude of a filter is a level.
    np.testing.assert_allclose(
        np.abs(got).max(axis=(1, 2)), np.abs(array).max(axis=(1, 2)), rtol=1e-6
    )


@pytest.mark.parametrize("bits", BITS)
def test_the_mean_of_a_thousand_encodings_is_the_input(bits):
    array, coding = weights((4, 3, 3)), Integers(bits)
    samples = np.stack(
        [coding.decode(coding.encode(array, k), array.shape, k) for k in range(1000)]
    )
    error = np.abs(samples.mean(axis=0, dtype=np.float64) - array)
    step = np.abs(array).max(axis=(1, 2), keepdims=True) / (2 ** (bits - 1) - 1)
    # A value between two levels is off by half a step at most, in standard deviations.
    assert (error <= 5 * 0.5 * step / math.sqrt(1000) + 1e-6 * np.abs(array)).all()


def test_the_layout_of_four_bits():
    """Scales first; then 4-bit two's complement, the first number high."""
    array = np.array([[7, -7, 3], [-1, 0, 1]], np.float32)
    scales = np.array([1, 1 / 7], np.float32)
    data = Integers(4).encode(array, 5)
    assert data[:8] == scales.astype("<f4").tobytes()
    assert list(data[8:]) == [0x79, 0x39, 0x07]


@pytest.mark.parametrize(("bits", "code"), [(16, "<i2"), (8, "i1")])
def test_the_layout_of_whole_bytes(bits, code):
    levels = 2 ** (bits - 1) - 1
    array = np.array([[levels, -levels, 0, 5]], np.float32)
    data = Integers(bits).encode(array, 5)
    assert np.frombuffer(data[:4], "<f4").tolist() == [1.0]
    assert np.frombuffer(data[4:], code).tolist() == [levels, -levels, 0, 5]


@pytest.mark.parametrize("bits", BITS)
def test_the_seed_decides_the_rounding(bits):
    array, coding = weights((40, 9)), Integers(bits)
    assert coding.encode(array, 1) == coding.encode(array, 1)
    assert coding.encode(array, 1) != coding.encode(array, 2)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_the_receiver(bits, value):
    array = weights((4, 9))
    array[2, 2] = value
    data = Integers(bits).encode(array, 1)
    with pytest.raises(WireError, match="1 scales that are none"):
        Integers(bits).decode(data, array.shape, 1)


def test_padding_must_be_zero():
    data = bytearray(Integers(4).encode(weights((1, 3)), 1))
    data[-1] |= 1
    with pytest.raises(WireError, match="padding bits are not zero"):
        Integers(4).decode(bytes(data), (1, 3), 1)


@pytest.mark.parametrize(
    ("bits", "lowest"), [(16, b"\x00\x80"), (8, b"\x80"), (4, b"\x80")]
)
def test_the_number_without_an_opposite_is_refused(bits, lowest):
    data = np.ones(1, "<f4").tobytes() + lowest
    with pytest.raises(WireError, match=f"holds the number -{2 ** (bits - 1)}"):
        Integers(bits).decode(data, (1, 1), 1)

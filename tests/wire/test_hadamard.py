"""The transform against its definition."""

import numpy as np
import pytest

from fedbnn_core.wire.hadamard import LARGEST, SMALLEST, block_sizes, transform


def by_definition(size):
    """H[i, j] = -1 to the number of common one-bits of i and j."""
    return np.array(
        [[(-1.0) ** (i & j).bit_count() for j in range(size)] for i in range(size)]
    )


@pytest.mark.parametrize("size", [1, 2, 8, 32, 64, 128, 512])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_row_is_transformed(size, dtype):
    blocks = np.random.default_rng(0).integers(-50, 50, (3, size)).astype(dtype)
    result = transform(blocks)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, blocks @ by_definition(size))


def test_two_transforms_of_signs_are_exact_in_float32():
    generator = np.random.default_rng(1)
    signs, other = generator.choice([-1.0, 1.0], (2, 4, LARGEST))
    exact = transform(transform(signs) * other)
    rough = transform(transform(signs.astype("f4")) * other.astype("f4"))
    assert rough.dtype == np.float32
    np.testing.assert_array_equal(rough, exact)
    # The largest sums there can be: all in one place, and back.
    ones = np.ones((1, LARGEST), np.float32)
    np.testing.assert_array_equal(transform(transform(ones)), LARGEST * ones)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, []),
        (1, [(1, 32)]),
        (32, [(1, 32)]),
        (33, [(1, 32), (1, 32)]),
        (288, [(1, 256), (1, 32)]),
        (18_432, [(4, 4096), (1, 2048)]),
        (294_912, [(72, 4096)]),
    ],
)
def test_blocks(count, expected):
    assert block_sizes(count) == expected


def test_blocks_hold_everything_and_waste_little():
    for count in range(1, 20_000, 37):
        held = sum(number * size for number, size in block_sizes(count))
        assert 0 <= held - count < SMALLEST

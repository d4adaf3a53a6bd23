"""Weighted means against np.average and exact fractions."""

from fractions import Fraction

import numpy as np
import pytest

from fedbnn_core.aggregation.mean import mean_array, normalized_weights
from fedbnn_core.server.reply import Reply

# Below, at and beyond one block of the blocked sum.
SIZES = [1, 1000, 1 << 15, (1 << 15) + 1, 100_003]


def random_arrays(count, size, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.normal(size=size).astype(np.float32) for _ in range(count)]


def test_weights_are_shares_of_the_examples():
    replies = [Reply(k, n, {}) for k, n in enumerate((1, 2, 5))]
    assert normalized_weights(replies) == [0.125, 0.25, 0.625]


def test_no_examples_is_an_error():
    with pytest.raises(ValueError, match="no reply has any examples"):
        normalized_weights([])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("container", [list, iter])
def test_mean_is_the_float64_average(size, container):
    arrays = random_arrays(7, size)
    weights = [k / 28 for k in range(1, 8)]
    got = mean_array(container(arrays), weights)
    wanted = np.average(np.stack(arrays).astype(np.float64), axis=0, weights=weights)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=1e-7, atol=1e-12)


def test_list_and_generator_give_the_same_bits():
    arrays = random_arrays(5, 70_001)
    weights = [0.1, 0.2, 0.3, 0.15, 0.25]
    blocked, streamed = mean_array(arrays, weights), mean_array(iter(arrays), weights)
    assert blocked.tobytes() == streamed.tobytes()


def test_sums_run_in_float64():
    # In float32, 1e8 + 1 = 1e8 and the ones would be lost.
    arrays = [np.array([value], np.float32) for value in (1e8, 1.0, -1e8, 1.0)]
    assert mean_array(arrays, [0.25] * 4)[0] == 0.5
    exact = sum(Fraction(float(a[0])) * Fraction(1, 4) for a in arrays)
    assert exact == Fraction(1, 2)


@pytest.mark.parametrize("container", [list, iter])
def test_integers_are_rounded_and_scalars_keep_their_shape(container):
    scalars = [np.array(value, np.int64) for value in (10, 20, 24)]
    got = mean_array(container(scalars), [0.25, 0.25, 0.5])
    assert got.shape == ()
    assert got.dtype == np.int64
    assert int(got) == 20  # 19.5 goes to the even neighbour


def test_transposed_and_read_only_arrays_are_summed_in_place():
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    base.flags.writeable = False
    got = mean_array([base.T, base.T], [0.5, 0.5])
    np.testing.assert_array_equal(got, base.T)


@pytest.mark.parametrize("container", [list, iter])
def test_number_of_weights_must_match(container):
    with pytest.raises(ValueError, match="zip"):
        mean_array(container(random_arrays(2, 3)), [1.0])
    with pytest.raises(ValueError, match="no arrays"):
        mean_array(container([]), [])

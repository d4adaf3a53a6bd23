"""Folding of BN and sign, against the comparison that it replaces."""

import numpy as np
import pytest

from fedbnn_core.packed.threshold import fold_thresholds, reachable_sums


@pytest.mark.parametrize("fan_in", [1, 2, 9, 144])
def test_one_comparison_decides_like_batch_norm(fan_in: int) -> None:
    rng = np.random.default_rng(fan_in)
    sums = reachable_sums(fan_in)
    assert sums.tolist() == [fan_in - 2 * wrong for wrong in range(fan_in, -1, -1)]
    gamma = rng.standard_normal(200)
    gamma[::5] = 0.0
    mean = rng.integers(-fan_in - 3, fan_in + 4, 200)
    beta = rng.standard_normal(200) * gamma.std() * (rng.random(200) < 0.7)
    # Where beta is 0 and the mean is a reachable sum, BN is exactly 0 there: +1.
    positive = gamma[:, None] * (sums - mean[:, None]) + beta[:, None] >= 0
    thresholds, flips = fold_thresholds(positive, fan_in)
    folded = (sums >= thresholds[:, None]) ^ flips[:, None]
    np.testing.assert_array_equal(folded, positive)
    assert (np.abs(thresholds) <= fan_in).all()


def test_hand_worked_cases() -> None:
    # Sums -3, -1, 1, 3.
    positive = np.array(
        [
            [False, False, True, True],
            [True, True, True, False],
            [True, True, True, True],
            [False, False, False, False],
        ]
    )
    thresholds, flips = fold_thresholds(positive, 3)
    assert thresholds.tolist() == [1, 3, -3, -3]
    assert flips.tolist() == [False, True, False, True]


def test_a_function_that_is_not_monotone_is_refused() -> None:
    with pytest.raises(ValueError, match="more than once"):
        fold_thresholds(np.array([[False, True, False]]), 2)

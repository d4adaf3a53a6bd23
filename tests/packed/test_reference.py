"""The numpy reference's float operations against exact arithmetic."""

from fractions import Fraction

import numpy as np

from fedbnn_core.packed import reference
from fedbnn_core.packed.graph import Kind, Operation


def nearest_float32(exact: Fraction) -> np.float32:
    """Round a fraction to the nearest float32, ties to even, by comparison."""
    guess = np.float32(float(exact))
    around = [np.nextafter(guess, np.float32(s)) for s in (-np.inf, np.inf)]
    candidates = [guess, *around]
    distance = [abs(Fraction(float(c)) - exact) for c in candidates]
    nearest = [
        c for c, d in zip(candidates, distance, strict=True) if d == min(distance)
    ]
    return min(nearest, key=lambda c: int(np.float32(c).view(np.int32)) & 1)


def test_fma_rounds_once() -> None:
    rng = np.random.default_rng(0)
    x, gain, offset = rng.standard_normal((3, 2000)).astype(np.float32)
    offset[::2] = -(x * gain)[::2]  # massive cancellation
    # The exact result lies just beside the middle of two float32: rounding first to
    # float64 would land on the middle, and then on the wrong neighbour.
    x[0] = gain[0] = np.float32(1 + 2**-12)
    offset[0] = np.float32(2.0**-60)
    x[1], gain[1], offset[1] = np.float32(1), np.float32(1 + 2**-23), np.float32(2**-24)
    actual = reference.fma(x, gain, offset)
    for i in range(len(x)):
        exact = Fraction(float(x[i])) * Fraction(float(gain[i]))
        assert actual[i] == nearest_float32(exact + Fraction(float(offset[i]))), i


def test_layer_norm_matches_its_formula() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((2, 3, 3, 37)).astype(np.float32) * 5 + 2
    gamma, beta = rng.standard_normal((2, 37)).astype(np.float32)
    op = Operation(Kind.LAYERNORM, 37, gain=gamma, offset=beta, epsilon=1e-6)
    wide = values.astype(np.float64)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)
    expected = centred / deviation * gamma + beta
    actual = reference._float_operation(op, values)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)

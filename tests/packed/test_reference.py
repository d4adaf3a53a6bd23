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


def test_layer_norm_takes_the_signs_of_its_exact_values() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((500, 1, 1, 37)).astype(np.float32) * 5 + 2
    wide = values.astype(np.longdouble)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    epsilon = np.longdouble(np.float32(1e-6))
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
    gamma = rng.standard_normal(37).astype(np.float32)
    for row in range(500):
        # Every value is what rounding beta leaves over, some 1e-8 on either side of 0.
        normal = (centred / deviation)[row] * gamma
        beta = -normal.astype(np.float32)[0, 0]
        op = Operation(Kind.LAYERNORM, 37, gain=gamma, offset=beta, epsilon=1e-6)
        expected = normal + beta
        actual = reference._float_operation(op, values[row : row + 1])[0]
        np.testing.assert_array_equal(actual < 0, expected < 0)
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-14)


def test_convolution_takes_the_signs_of_its_exact_sums() -> None:
    rng = np.random.default_rng(2)
    values = rng.standard_normal((1, 9, 9, 3)).astype(np.float32)
    weight = rng.standard_normal((3, 3, 3, 500)).astype(np.float32)
    exact = np.zeros(500, np.longdouble)
    for y, x, c in np.ndindex(3, 3, 3):
        product = values[0, 4 + y, 2 + x, c].astype(np.longdouble) * weight[y, x, c]
        exact += product
    op = Operation(
        Kind.CONV,
        500,
        kernel=(3, 3),
        stride=1,
        padding=(0, 0, 0, 0),
        weight=weight,
        bias=-exact.astype(np.float32),
    )
    actual = reference._float_operation(op, values)[0, 4, 2]
    expected = exact - exact.astype(np.float32)
    np.testing.assert_array_equal(actual < 0, expected < 0)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-14)

"""Float arithmetic with integers gives the bits of binary64 and of a fused step."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedbnn_core.packed.mcu
from fedbnn_core.packed.reference import fma
from tests.packed.mcu.projects import need

DEVICE = Path(fedbnn_core.packed.mcu.__file__).parent / "device"
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
NO_TRIPLES = np.zeros((0, 3), np.float32)
NO_ROWS = np.zeros((0, 3), np.float32)
Program = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    need("gcc")
    path = tmp_path_factory.mktemp("arithmetic") / "arithmetic"
    source = Path(__file__).with_name("arithmetic.c")
    options = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
    subprocess.run(
        ["gcc", *options, *SANITIZERS, f"-I{DEVICE}", "-o", path, source], check=True
    )

    def run(triples: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take (n, 3) and (rows, 1 + 2 length) floats."""
        length = (rows.shape[1] - 1) // 2
        data = np.uint32(len(triples)).tobytes() + triples.tobytes()
        data += np.array([len(rows), length], np.uint32).tobytes() + rows.tobytes()
        done = subprocess.run([path], input=data, capture_output=True, check=True)
        result = np.frombuffer(done.stdout, np.float32)
        return result[: len(triples)], result[len(triples) :].reshape(-1, 2)

    return run


def _random_floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return floats whose exponents differ a lot, and some zeros."""
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-30, 30, shape)
    return np.where(rng.random(shape) < 0.1, 0, values).astype(np.float32)


def test_fused_multiply_add(program: Program) -> None:
    rng = np.random.default_rng(0)
    near = _random_floats(rng, 5000, 3)
    # Cancellation: the offset is minus the rounded product, or one unit beside it.
    near[:2000, 2] = -(near[:2000, 0] * near[:2000, 1])
    near[1000:2000, 2] = np.nextafter(near[1000:2000, 2], np.float32(np.inf))
    # Ties: 1 + 2^-24 lies between two floats.
    ties = np.array([[1, 1, 2.0**-24], [1 + 2.0**-23, 1, 2.0**-24], [3, 1, -3]])
    tiny = np.array([[2.0**-80, 2.0**-60, 0], [2.0**-75, 3 * 2.0**-75, 2.0**-149]])
    small = np.array([[2.0**-149, 0.5, 2.0**-148], [-(2.0**-100), 2.0**-40, 2.0**-126]])
    large = np.array([[2.0**100, 2.0**30, 0], [3.0e38, 1, 3.0e38]])
    triples = np.concatenate([near, ties, tiny, small, large]).astype(np.float32)
    result, _ = program(triples, NO_ROWS)
    with np.errstate(over="ignore"):
        expected = [
            fma(triple[:1, None], triple[1:2], triple[2:])[0, 0] for triple in triples
        ]
    assert np.array_equal(result, expected)


def _in_float64(rows: np.ndarray, length: int) -> np.ndarray:
    """Return the sums as the file format defines them."""
    total = rows[:, 0].astype(np.float64)
    for i in range(length):
        total = total + rows[:, 1 + i].astype(np.float64) * rows[:, 1 + length + i]
    return total.astype(np.float32)


@pytest.mark.parametrize("length", [1, 2, 27, 256])
@pytest.mark.parametrize("kind", ["alike", "far apart", "cancel", "halves"])
def test_sums_of_products(program: Program, length: int, kind: str) -> None:
    rng = np.random.default_rng(length)
    rows = rng.standard_normal((600, 1 + 2 * length)).astype(np.float32)
    if kind == "far apart":
        rows = _random_floats(rng, *rows.shape)
    elif kind == "cancel":
        # The bias takes almost all of the sum away.
        rows[:, 0] = 0
        rows[:, 0] = -_in_float64(rows, length)
    elif kind == "halves":
        # Small integers: many sums lie exactly between two floats.
        rows = rng.integers(-9, 10, rows.shape).astype(np.float32)
        rows[:, 0] = 2.0**24 + rng.integers(0, 9, len(rows))
        rows[:, 1] *= np.float32(2.0**-20)
    _, result = program(NO_TRIPLES, rows)
    expected = _in_float64(rows, length)
    assert np.array_equal(result[:, 0], expected)
    assert np.array_equal(result[:, 1], expected)

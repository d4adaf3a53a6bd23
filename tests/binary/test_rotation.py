"""Rotations against Kronecker products, brute force and plain numpy formulas."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbnn_core.binary import devices, native_rotation, native_steps, rotation
from fedbnn_core.binary.model import binary_layers
from fedbnn_core.binary.rotation import (
    _by_svd,
    _newton_schulz,
    angular_cosine,
    common_start,
    factor_pair,
    learn_rotation,
    learn_rotations,
    orthogonality_error,
    rotate,
    rotate_back,
)
from fedbnn_core.binary.surrogate import sign
from fedbnn_core.data import load_dataset
from fedbnn_core.training.central import build_model, fit

# n -> (n1, n2) as the paper's parameter table of overheads implies them.
FACTOR_TABLE = {
    9: (3, 3),
    27: (3, 9),
    49: (7, 7),
    64: (8, 8),
    96: (8, 12),
    128: (8, 16),
    192: (12, 16),
    256: (16, 16),
    288: (16, 18),
    384: (16, 24),
    576: (24, 24),
    768: (24, 32),
    1152: (32, 36),
    1536: (32, 48),
    2304: (48, 48),
    3072: (48, 64),
    4608: (64, 72),
}


needs_compiler = pytest.mark.skipif(
    not native_steps.kernels(), reason="installed without a C compiler"
)
NATIVE = [False, pytest.param(True, marks=needs_compiler)]
"""Learnt by torch, or by compiled code."""


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plus_minus(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, 1.0, -1.0)


def objective(x: np.ndarray, r1: np.ndarray, r2: np.ndarray) -> float:
    """sum_i tr(B_i R2^T X_i^T R1), B_i = sign(R1^T X_i R2), filter by filter."""
    total = 0.0
    for block in x:
        b = plus_minus(r1.T @ block @ r2)
        total += float(np.trace(b @ r2.T @ block.T @ r1))
    return total


def spec_iteration(
    x: np.ndarray, r1: np.ndarray, r2: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One bi-rotation step, Eq. 11 and Eq. 12 in float64."""
    signs = [plus_minus(r1.T @ block @ r2) for block in x]
    d1 = sum(b @ r2.T @ block.T for b, block in zip(signs, x, strict=True))
    u, _, v_t = np.linalg.svd(d1)
    r1 = v_t.T @ u.T
    d2 = sum(block.T @ r1 @ b for b, block in zip(signs, x, strict=True))
    u, _, v_t = np.linalg.svd(d2)
    return r1, u @ v_t


@pytest.mark.parametrize(("n", "pair"), FACTOR_TABLE.items())
def test_factor_pair_follows_the_papers_table(n: int, pair: tuple[int, int]) -> None:
    assert factor_pair(n) == pair


def test_factor_pair_is_the_most_square_factorization() -> None:
    for n in range(1, 700):
        products = [(a, n // a) for a in range(1, n + 1) if n % a == 0]
        wanted = max(pair for pair in products if pair[0] <= pair[1])
        assert factor_pair(n) == wanted


@pytest.mark.parametrize("n", [0, -4])
def test_factor_pair_needs_a_weight(n: int) -> None:
    with pytest.raises(ValueError, match="at least one weight"):
        factor_pair(n)


@pytest.mark.parametrize("n", [1, 2, 9, 12, 27, 49])
@pytest.mark.parametrize("shape", [(5,), (5, 1, 1)])
def test_rotate_is_the_transposed_kronecker_product(
    n: int, shape: tuple[int, ...]
) -> None:
    rotation = common_start(n, start="haar", seed=(n, 3))
    w = gaussian(shape[0], n, *shape[1:], seed=n)
    big = np.kron(rotation[0].double().numpy(), rotation[1].double().numpy())
    expected = w.reshape(-1, n).double().numpy() @ big  # row vectors: (R^T w)^T
    out = rotate(w, rotation)
    assert out.shape == w.shape
    np.testing.assert_allclose(out.reshape(-1, n).numpy(), expected, atol=2e-6)


def test_rotate_reads_a_convolution_weight_row_major() -> None:
    w = gaussian(4, 3, 3, 3)
    rotation = common_start(27, start="haar")
    r1, r2 = (r.numpy() for r in rotation)
    expected = [r1.T @ f.reshape(3, 9) @ r2 for f in w.numpy()]
    out = rotate(w.to(memory_format=torch.channels_last), rotation)
    np.testing.assert_allclose(out.reshape(4, 3, 9).numpy(), expected, atol=1e-6)


def test_rotate_back_is_inverse_and_adjoint() -> None:
    rotation = common_start(36, start="haar")
    x, y = gaussian(7, 36, seed=1), gaussian(7, 36, seed=2)
    torch.testing.assert_close(rotate_back(rotate(x, rotation), rotation), x)
    left = float((rotate(x, rotation) * y).sum())
    assert left == pytest.approx(float((x * rotate_back(y, rotation)).sum()), rel=1e-4)


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("start", ["identity", "haar"])
@pytest.mark.parametrize("n", [9, 288])
def test_rotations_stay_orthogonal(start: str, n: int, native: bool) -> None:
    rotation = common_start(n, start=start)
    x = gaussian(16, n)
    done = 0
    for target in (1, 3, 50, 200):
        rotation = learn_rotation(x, rotation, iterations=target - done, native=native)
        done = target
        for r in rotation:
            r64 = r.double().numpy()
            error = np.abs(r64.T @ r64 - np.eye(len(r64))).max()
            assert error < 1e-5
            assert orthogonality_error(r) == pytest.approx(error, abs=1e-9)


def test_a_large_layer_stays_orthogonal() -> None:
    x = gaussian(32, 4608)
    for r in learn_rotation(x, common_start(4608), iterations=3):
        assert np.abs((r.double().T @ r.double()).numpy() - np.eye(len(r))).max() < 1e-5


@settings(max_examples=25, deadline=None)
@given(
    n=st.sampled_from([2, 9, 12, 27, 64, 96]),
    filters=st.integers(1, 20),
    seed=st.integers(0, 10_000),
    start=st.sampled_from(["identity", "haar"]),
)
def test_the_objective_never_decreases(
    n: int, filters: int, seed: int, start: str
) -> None:
    n1, n2 = factor_pair(n)
    w = gaussian(filters, n, seed=seed)
    x = w.double().numpy().reshape(filters, n1, n2)
    rotation = common_start(n, start=start, seed=(seed,))
    last = objective(x, *(r.double().numpy() for r in rotation))
    for _ in range(6):
        rotation = learn_rotation(w, rotation, iterations=1)
        value = objective(x, *(r.double().numpy() for r in rotation))
        assert value >= last - 1e-5 * abs(last)
        last = value


@pytest.mark.parametrize(("n", "filters"), [(9, 8), (27, 32), (288, 64)])
def test_an_iteration_equals_the_formulas(n: int, filters: int) -> None:
    n1, n2 = factor_pair(n)
    w = gaussian(filters, n, seed=4).double()
    rotation = tuple(r.double() for r in common_start(n, start="haar", seed=(4,)))
    expected = tuple(r.numpy() for r in rotation)
    x = w.numpy().reshape(filters, n1, n2)
    for count in (1, 2, 3):
        expected = spec_iteration(x, *expected)
        learned = learn_rotation(w, rotation, iterations=count)
        for ours, theirs in zip(learned, expected, strict=True):
            # The start is orthogonal to float32 rounding only.
            np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-6)


@pytest.mark.parametrize("native", NATIVE)
def test_float32_agrees_with_the_float64_formulas(native: bool) -> None:
    w = gaussian(64, 288, seed=5)
    rotation = common_start(288, start="haar", seed=(5,))
    expected = spec_iteration(
        w.double().numpy().reshape(64, 16, 18),
        *(r.double().numpy() for r in rotation),
    )
    learned = learn_rotation(w, rotation, iterations=1, native=native)
    for ours, theirs in zip(learned, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-4)


def test_no_iteration_changes_nothing() -> None:
    rotation = common_start(12, start="haar")
    for before, after in zip(
        rotation, learn_rotation(gaussian(3, 12), rotation, iterations=0), strict=True
    ):
        assert torch.equal(before, after)


def test_learning_takes_no_gradient() -> None:
    w = gaussian(4, 9).requires_grad_()
    assert not any(r.requires_grad for r in learn_rotation(w, common_start(9)))


def test_the_effect_has_the_known_size() -> None:
    """Mean cosine of 64 Gaussian filters of 16x18."""
    known = (0.7985, 0.8045, 0.8085, 0.8118)
    cosines = np.zeros((8, len(known)))
    for seed in range(8):
        w = gaussian(64, 288, seed=100 + seed)
        rotation = common_start(288, start="haar", seed=(seed,))
        for step in range(len(known)):
            if step:
                rotation = learn_rotation(w, rotation, iterations=1)
            v = rotate(w, rotation).double().numpy()
            norms = np.sqrt(288) * np.linalg.norm(v, axis=1)
            cosines[seed, step] = (np.abs(v).sum(axis=1) / norms).mean()
            assert angular_cosine(rotate(w, rotation)) == pytest.approx(
                cosines[seed, step], abs=1e-6
            )
    np.testing.assert_allclose(cosines.mean(axis=0), known, atol=1.5e-3)
    assert (np.diff(cosines, axis=1) > 0).all()


def test_a_single_filter_nearly_reaches_its_signs() -> None:
    cosines = []
    for seed in range(10):
        w = gaussian(1, 288, seed=200 + seed)
        rotation = common_start(288, start="haar", seed=(seed,))
        cosines.append(angular_cosine(rotate(w, learn_rotation(w, rotation))))
    assert np.mean(cosines) == pytest.approx(0.975, abs=0.01)


def test_starts_are_common_and_seeded() -> None:
    one, two = (common_start(36, start="haar", seed=(7, 1)) for _ in range(2))
    other = common_start(36, start="haar", seed=(7, 2))
    swapped = common_start(36, start="haar", seed=(1, 7))
    for index in range(2):
        assert torch.equal(one[index], two[index])
        assert not torch.allclose(one[index], other[index], atol=1e-2)
        assert not torch.allclose(one[index], swapped[index], atol=1e-2)
        assert orthogonality_error(one[index]) < 1e-5
    assert not torch.allclose(one[0], one[1], atol=1e-2)


def test_a_haar_start_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    common_start(36, start="haar", seed=(1,))
    assert torch.equal(torch.get_rng_state(), before)


def test_haar_matrices_are_uniform_on_the_circle() -> None:
    """2x2 Haar: first columns are uniform angles, reflections as likely as turns."""
    draws = [common_start(4, start="haar", seed=(s,))[0].numpy() for s in range(400)]
    angles = np.array([np.arctan2(r[1, 0], r[0, 0]) for r in draws])
    counts, _ = np.histogram(angles, bins=8, range=(-np.pi, np.pi))
    assert ((counts - 50) ** 2 / 50).sum() < 29.9  # chi2, 7 degrees, p = 1e-4
    assert 160 < sum(np.linalg.det(r) > 0 for r in draws) < 240


def test_the_identity_start_changes_no_weight() -> None:
    w = gaussian(3, 27)
    assert torch.equal(rotate(w, common_start(27)), w)


def test_an_unknown_start_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"identity.*haar.*'random'"):
        common_start(9, start="random")


@pytest.mark.parametrize("value", [0.0, 1.0, -1e-30])
@pytest.mark.parametrize(("filters", "n"), [(1, 1), (4, 1), (1, 9), (5, 12)])
def test_degenerate_weights_give_an_orthogonal_rotation(
    value: float, filters: int, n: int
) -> None:
    w = torch.full((filters, n), value)
    for r in learn_rotation(w, common_start(n, start="haar"), iterations=5):
        assert torch.isfinite(r).all()
        assert orthogonality_error(r) < 1e-5


def test_angular_cosine_by_hand() -> None:
    assert angular_cosine(torch.tensor([[3.0, -4.0]])) == pytest.approx(
        7 / (np.sqrt(2) * 5)
    )
    assert angular_cosine(torch.tensor([[2.0, -2.0, 2.0]])) == pytest.approx(1.0)
    one_dead = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    assert angular_cosine(one_dead) == pytest.approx(0.5)


def test_learning_undoes_a_small_turn() -> None:
    """Signs turned a little away from their axes: learning turns them back."""
    signs = sign(gaussian(40, 36, seed=8))
    skew = gaussian(6, 6, seed=9) * 0.1
    turn = torch.linalg.matrix_exp(skew - skew.t())
    turned = rotate(signs, (turn, turn.t()))
    assert angular_cosine(turned) < 0.98
    learned = learn_rotation(turned, common_start(36), iterations=20)
    assert angular_cosine(rotate(turned, learned)) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("filters", [24, 64, 256])
@pytest.mark.parametrize("n", [2, 3, 9, 147, 288, 1152, 2304])
def test_the_matrix_iteration_agrees_with_the_svd(
    n: int, filters: int, native: bool
) -> None:
    weights = gaussian(filters, n, seed=n + filters)
    r1, r2 = (r.double().numpy() for r in common_start(n))
    blocks = weights.double().numpy().reshape(filters, len(r1), len(r2))
    for _ in range(3):
        r1, r2 = spec_iteration(blocks, r1, r2)
    learnt = learn_rotation(weights, common_start(n), native=native)
    for got, expected in zip(learnt, (r1, r2), strict=True):
        assert np.abs(got.numpy() - expected).max() < 1e-5
        assert orthogonality_error(got) < 1e-6


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("at_once", [False, True])
def test_layers_are_learnt_together_as_one_by_one(
    at_once: bool, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_deficient = gaussian(1, 288, seed=1).repeat(8, 1)
    weights = [
        gaussian(32, 9, seed=2),
        rank_deficient,
        torch.zeros(4, 9),
        torch.full((4, 27), 1e9),
        gaussian(64, 288, seed=3),
        gaussian(32, 9, seed=4),
        gaussian(64, 288, seed=5),
        gaussian(1, 3, seed=6),
    ]
    layers = [(w, common_start(w.shape[1])) for w in weights]
    apart = [learn_rotation(*layer, native=native) for layer in layers]
    if at_once:
        monkeypatch.setattr(devices, "LAYER_BY_LAYER", ())
    together = learn_rotations(layers, native=native)
    for pair, alone in zip(together, apart, strict=True):
        for got, expected in zip(pair, alone, strict=True):
            torch.testing.assert_close(
                got, expected, rtol=0, atol=1e-5 if at_once else 0
            )
            assert orthogonality_error(got) < 1e-5
    assert learn_rotations([]) == []


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize(("filters", "n"), [(1, 1), (1, 3), (3, 3), (1, 288), (2, 64)])
def test_few_filters_make_no_worse_rotation(filters: int, n: int, native: bool) -> None:
    """D has fewer singular values above zero than rows: only an SVD helps."""
    n1, n2 = factor_pair(n)
    w = gaussian(filters, n, seed=11)
    x = w.double().numpy().reshape(filters, n1, n2)
    start = common_start(n)
    learnt = learn_rotation(w, start, native=native)
    before = objective(x, *(r.double().numpy() for r in start))
    after = objective(x, *(r.double().numpy() for r in learnt))
    assert after >= before - 1e-5 * abs(before)
    assert all(orthogonality_error(r) < 1e-5 for r in learnt)


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_diverged_weights_are_an_error(
    bad: float, at_once: bool, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if at_once:
        monkeypatch.setattr(devices, "LAYER_BY_LAYER", ())
    broken = gaussian(8, 9)
    broken[3, 4] = bad
    layers = [(gaussian(8, 9, seed=1), common_start(9)), (broken, common_start(9))]
    with pytest.raises(torch.linalg.LinAlgError):
        learn_rotations(layers, native=native)


@needs_compiler
@pytest.mark.parametrize("n", [3, 49, 288, 1152])
def test_all_kernel_sets_learn_the_same_bits(n: int) -> None:
    weights, start = gaussian(17, n, seed=n), common_start(n, start="haar")
    learnt = []
    for name in native_steps.kernels():
        native_steps.use_kernel(name)
        try:
            learnt.append(native_rotation.turned(weights, start, 3))
        finally:
            native_steps.use_kernel("auto")
    for pair, deviation in learnt[1:]:
        assert torch.equal(deviation, learnt[0][1])
        for got, expected in zip(pair, learnt[0][0], strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize(
    "weights",
    [
        torch.zeros(4, 9, dtype=torch.float64),
        torch.zeros(4, 9, device="meta"),
        torch.zeros(4, 2, 3, 3).to(memory_format=torch.channels_last),
    ],
)
def test_what_has_no_kernel_is_left_to_torch(weights: torch.Tensor) -> None:
    assert not native_rotation.takes(weights)


def weights_with(singular: np.ndarray, filters: int = 400) -> torch.Tensor:
    """Return filters of n x n whose D1, at R = I, has about these singular values.

    sum_i sign(X_i) X_i^T of Gaussian rows that are as long as the values ask for.
    """
    n = len(singular)
    rows = gaussian(filters, n, n, seed=9) * torch.tensor(singular)[:, None].float()
    return rows.reshape(filters, n * n)


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize(
    ("condition", "outlier"),
    [(1.0, 1.0), (1.0, 3.0), (9.0, 1.0), (9.0, 3.0), (30.0, 1.0)],
)
def test_no_svd_is_needed_for_matrices_of_long_trainings(
    condition: float, outlier: float, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 400 rounds D had a condition of 9, its largest value 2.5 times the mean."""
    singular = np.geomspace(1.0, 1.0 / condition, 24)
    singular[0] *= outlier
    weights, start = weights_with(singular), common_start(24 * 24)
    blocks = weights.double().numpy().reshape(-1, 24, 24)
    d1 = sum(plus_minus(block) @ block.T for block in blocks)
    found = np.linalg.svd(d1, compute_uv=False)
    assert found[0] / found[-1] > 0.8 * condition
    expected = spec_iteration(blocks, *(r.double().numpy() for r in start))

    def refuse(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError("the SVD was needed")

    monkeypatch.setattr(rotation, "_by_svd", refuse)
    learnt = learn_rotation(weights, start, iterations=1, native=native)
    for got, wanted in zip(learnt, expected, strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, atol=2e-6)


def test_the_matrix_iteration_is_the_svd_on_a_trained_network() -> None:
    whole = load_dataset("fmnist-mini")
    data = replace(
        whole,
        x_train=whole.x_train[:1000],
        y_train=whole.y_train[:1000],
        writer_ids=None,
    )
    model = build_model("cnn4", data)
    fit(model, data, epochs=4, lr=0.1)
    for name, layer in binary_layers(model).items():
        r1, r2 = layer.rotation
        x = layer.standardized().reshape(-1, len(r1), len(r2))
        b = sign(r1.t() @ x @ r2)
        d1 = (b @ r2.t() @ x.mT).sum(dim=0)
        d2 = (x.mT @ r1 @ b).sum(dim=0)
        for matrix in (d1, d2):
            polar, deviation = _newton_schulz(matrix)
            assert float(deviation) < 1e-5, name
            assert float((polar - _by_svd(matrix)[0]).abs().max()) < 1e-6, name

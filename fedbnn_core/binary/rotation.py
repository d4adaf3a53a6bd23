"""Learned rotations that bring a layer's weights close to their signs.

A layer has one pair of orthogonal matrices ``R1`` (n1 x n1) and ``R2`` (n2 x n2),
shared by all its filters. With a filter's n = n1*n2 weights reshaped row-major to X,

    rot(w) = R1^T X R2,   equal to   (R1 kron R2)^T vec(X).

The pair is learned without gradients and never averaged.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedbnn_core.binary import native_rotation
from fedbnn_core.binary.devices import layer_by_layer
from fedbnn_core.binary.surrogate import sign

__all__ = [
    "Rotation",
    "angular_cosine",
    "common_start",
    "factor_pair",
    "learn_anew",
    "learn_rotation",
    "learn_rotations",
    "orthogonality_error",
    "rotate",
    "rotate_back",
    "round_start",
]

Rotation = tuple[Tensor, Tensor]


def factor_pair(n: int) -> tuple[int, int]:
    """Return (n1, n2), n1 the largest divisor of n with n1 <= sqrt(n), Eq. 5."""
    if n < 1:
        raise ValueError(f"a filter needs at least one weight, got n = {n}")
    n1 = next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)
    return n1, n // n1


def common_start(
    n: int, *, start: str = "identity", seed: Sequence[int] = (0,)
) -> Rotation:
    """Return the (R1, R2) from which every client of a run starts each round.

    Parameters
    ----------
    n : weights per filter.
    start : "identity", or "haar" for uniformly random orthogonal matrices.
    seed : integers that fix the Haar draw; the same on all clients, because rotated
        weights of clients with different starts do not agree and average to noise.
    """
    n1, n2 = factor_pair(n)
    if start == "identity":
        return torch.eye(n1), torch.eye(n2)
    if start != "haar":
        raise ValueError(f"a common start is 'identity' or 'haar', got {start!r}")
    generator = torch.Generator().manual_seed(
        sum(part * 1_000_003**i for i, part in enumerate(seed)) % (2**63)
    )
    return _haar(n1, generator), _haar(n2, generator)


def _haar(size: int, generator: torch.Generator) -> Tensor:
    gaussian = torch.randn(size, size, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    # Fixing the signs of R's diagonal makes QR unique and Q uniformly distributed.
    unique: Tensor = q * sign(r.diagonal())
    return unique.float()


def rotate(weights: Tensor, rotation: Rotation) -> Tensor:
    """Return rot(w) = R1^T X R2 for every filter, Eq. 4, in the shape of ``weights``.

    ``weights`` is (filters, ...) with n1*n2 values per filter.
    """
    r1, r2 = rotation
    blocks = weights.reshape(-1, r1.shape[0], r2.shape[0])
    return torch.matmul(r1.t(), torch.matmul(blocks, r2)).reshape(weights.shape)


def rotate_back(weights: Tensor, rotation: Rotation) -> Tensor:
    """Return R1 X R2^T for every filter: the inverse and the adjoint of `rotate`."""
    r1, r2 = rotation
    return rotate(weights, (r1.t(), r2.t()))


@torch.no_grad()
def learn_rotation(
    weights: Tensor, rotation: Rotation, *, iterations: int = 3, native: bool = False
) -> Rotation:
    """Return (R1, R2) improved by bi-rotation steps.

    With B_i = sign(R1^T X_i R2) over all filters i, one iteration is

        D1 = sum_i B_i R2^T X_i^T = U S V^T,   R1 <- V U^T     (Eq. 11)
        D2 = sum_i X_i^T R1 B_i   = U S V^T,   R2 <- U V^T     (Eq. 12)

    and never decreases sum_i tr(B_i R2^T X_i^T R1) (Eq. 13).

    Parameters
    ----------
    weights : standardized fused weights (filters, ...); no gradient flows.
    rotation : the current pair, float32.
    iterations : number of iterations; 0 returns ``rotation``.
    native : see `learn_rotations`.
    """
    layers = [(weights, rotation)]
    return learn_rotations(layers, iterations=iterations, native=native)[0]


_WARM_ITERATIONS = 15


def round_start(
    z_server: Tensor, *, start: str, seed: Sequence[int], native: bool = False
) -> Rotation:
    """Return the (R1, R2) from which all clients start a round.

    Parameters
    ----------
    z_server : std of the broadcast weights (filters, ...).
    start : "warm" learns on them from the identity, as many iterations as five epochs
        have: what all clients were sent gives all the same start. Else as for
        `common_start`.
    seed : of `common_start`.
    native : see `learn_rotations`.
    """
    n = z_server[0].numel()
    if start != "warm":
        return common_start(n, start=start, seed=seed)
    identity = common_start(n)
    return learn_anew(
        z_server, identity, iterations=_WARM_ITERATIONS, times=1, native=native
    )


@torch.no_grad()
def learn_anew(
    weights: Tensor,
    rotation: Rotation,
    *,
    iterations: int,
    times: int,
    native: bool = False,
) -> Rotation:
    """Return (R1, R2) as epochs would learn them on weights that do not change.

    Parameters
    ----------
    weights : standardized fused weights (filters, ...), of one client.
    rotation : where the round starts. Weights that no rotation can be learnt of,
        because they overflow, keep it.
    iterations : of each epoch.
    times : how many epochs.
    native : see `learn_rotations`.
    """
    if weights.is_meta or weights[0].numel() == 1 or not weights.isfinite().all():
        return rotation
    for _ in range(times):
        rotation = learn_rotation(
            weights, rotation, iterations=iterations, native=native
        )
    return rotation


@torch.no_grad()
def learn_rotations(
    layers: Sequence[tuple[Tensor, Rotation]],
    *,
    iterations: int = 3,
    native: bool = False,
) -> list[Rotation]:
    """Return `learn_rotation` of every (weights, rotation), waiting once for a device.

    The orthogonal factors come from a Newton-Schulz iteration in float32: matrix
    products only. All layers are computed before the first result is looked at; a
    layer whose matrices were too ill-conditioned for it is learnt again by SVD. On an
    accelerator layers of one shape are computed at once. ``native`` allows compiled
    code where there is some, which adds up in another order: for layers that train in
    integers.
    """
    results = [rotation for _, rotation in layers]
    if not layers or iterations == 0:
        return results
    groups = _groups(layers)
    deviations = []
    for group in groups:
        alike = [layers[i] for i in group]
        learnt, deviation = _learn_alike(alike, iterations, native)
        deviations.append(deviation)
        for index, pair in zip(group, learnt, strict=True):
            results[index] = pair
    order = [index for group in groups for index in group]
    read = torch.cat(deviations).cpu().tolist()
    for index, deviation in zip(order, read, strict=True):
        if not deviation <= _MAX_DEVIATION:  # NaN fails, too
            results[index], _ = _bi_rotation(*layers[index], iterations, _by_svd)
    return results


def _groups(layers: Sequence[tuple[Tensor, Rotation]]) -> list[list[int]]:
    """Return which layers are computed at once, by their indices."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, (weights, _) in enumerate(layers):
        alone = layer_by_layer(weights.device)
        key = (index,) if alone else tuple(weights.shape)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def _learn_alike(
    layers: Sequence[tuple[Tensor, Rotation]], iterations: int, native: bool
) -> tuple[list[Rotation], Tensor]:
    """Return the learnt pairs of layers of one shape, and how far each deviates."""
    if len(layers) == 1 and native and native_rotation.takes(layers[0][0]):
        pair, deviation = native_rotation.turned(*layers[0], iterations)
        return [pair], deviation[None]
    if len(layers) == 1:
        pair, deviation = _bi_rotation(*layers[0], iterations, _newton_schulz)
        return [pair], deviation[None]
    weights = torch.stack([w for w, _ in layers])
    r1, r2 = (torch.stack([pair[i] for _, pair in layers]) for i in (0, 1))
    (r1, r2), deviation = _bi_rotation(weights, (r1, r2), iterations, _newton_schulz)
    return list(zip(r1, r2, strict=True)), deviation


def _bi_rotation(
    weights: Tensor,
    rotation: Rotation,
    iterations: int,
    polar: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> tuple[Rotation, Tensor]:
    """Return the learnt pair and how far any factor was from orthogonal.

    All three may have one dimension more in front: layers of one shape.
    """
    r1, r2 = rotation
    n1, n2 = r1.shape[-1], r2.shape[-1]
    x = weights.detach().reshape(*r1.shape[:-2], -1, n1, n2)
    half = torch.matmul(_each(r1.mT), x)  # R1^T X_i
    worst = torch.zeros(r1.shape[:-2], device=x.device)
    for _ in range(iterations):
        v = (half.flatten(-3, -2) @ r2).view(x.shape)  # R1^T X_i R2
        b = sign(v)
        # X_i R2 = R1 V_i, hence D1 = (sum_i B_i V_i^T) R1^T: no product with X here.
        b_rows, v_rows = (m.transpose(-3, -2).flatten(-2) for m in (b, v))
        factor, deviation = polar((b_rows @ v_rows.mT) @ r1.mT)
        r1 = factor.mT
        half = torch.matmul(_each(r1.mT), x)
        r2, other = polar(half.flatten(-3, -2).mT @ b.flatten(-3, -2))
        worst = torch.maximum(worst, torch.maximum(deviation, other))
    return (r1, r2), worst


def _each(r: Tensor) -> Tensor:
    """Return a layer's matrix, or one a layer, to multiply with every filter's."""
    return r if r.dim() == 2 else r[:, None]


_STEPS = 8
_LARGEST = 1.4
_MAX_DEVIATION = 1e-5


def _newton_schulz(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return U V^T of ``matrix`` = U S V^T, and max |x^T x - I| of the result.

    x <- x (15/8 I - 5/4 s + 3/8 s^2), s = x^T x, drives every singular value in
    (0, 1.52) to 1, the last steps with the third power of the error. The start is
    scaled by the norm of s^2, the eighth root of the sum of all singular values to the
    eighth: it is as large as the largest one, and little larger. Weights and their
    signs give D a condition of 1.2 to 3 at first and of 9 after hundreds of rounds;
    8 steps are exact to float32 up to 40.
    """
    n = matrix.shape[-1]
    identity = torch.eye(n, dtype=matrix.dtype, device=matrix.device)
    x = matrix / torch.linalg.vector_norm(matrix, dim=(-2, -1), keepdim=True)
    s = x.mT @ x
    fourth = torch.linalg.vector_norm(s @ s, dim=(-2, -1), keepdim=True)
    x = x * (_LARGEST / fourth.sqrt().sqrt())
    plus_product = torch.addmm if matrix.dim() == 2 else torch.baddbmm
    for _ in range(_STEPS):
        s = x.mT @ x
        x = x @ plus_product(1.875 * identity - 1.25 * s, s, s, alpha=0.375)
    return x, (x.mT @ x - identity).abs().amax(dim=(-2, -1))


def _by_svd(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return U V^T by a float64 SVD on the CPU, where every matrix has one."""
    u, _, v_t = torch.linalg.svd(matrix.cpu().double())
    factor = (u @ v_t).to(matrix.dtype).to(matrix.device)
    return factor, torch.zeros((), device=matrix.device)


def orthogonality_error(matrix: Tensor) -> float:
    """Return max |R^T R - I|, computed in float64."""
    r = matrix.cpu().double()
    identity = torch.eye(r.shape[0], dtype=r.dtype, device=r.device)
    return float((r.t() @ r - identity).abs().max())


def angular_cosine(weights: Tensor) -> float:
    """Return the mean over filters of cos(phi) = sign(v).v / (sqrt(n) |v|), Eq. 3.

    1 means that binarization turns the weights by no angle at all; Gaussian weights
    without rotation give sqrt(2/pi) = 0.798. All-zero filters count as 0.
    """
    v = weights.detach().reshape(weights.shape[0], -1)
    norm = v.norm(dim=1).clamp_min(torch.finfo(v.dtype).tiny)
    return float((v.abs().sum(dim=1) / (norm * math.sqrt(v.shape[1]))).mean())

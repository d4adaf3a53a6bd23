"""The mixed weight w~ of a binary layer, for client and server, and its gradient.

    v  = lambda * w_l + (1 - lambda) * w_s                          fused
    z  = std(v)                                                     standardized
    w~ = (1-alpha) z + alpha*beta rot(z) + alpha*(1-beta) std(w_s)  mixed

A client takes sign(w~) in every forward pass (`mixed_sign`), the server in every round
that it evaluates (`mixed_weight`). METHOD.md numbers the equations.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbnn_core.binary.memory_layout import channels_last
from fedbnn_core.binary.rotation import Rotation, rotate
from fedbnn_core.binary.surrogate import Sharpness, sign, surrogate_backward

__all__ = [
    "STD_EPS",
    "MixingScalars",
    "angle_share",
    "client_share",
    "fused_weight",
    "mixed_sign",
    "mixed_weight",
    "mixing_scalars",
    "standardize_filters",
    "standardize_in_place",
]

STD_EPS = 1e-5
"""Added to a filter's deviation, so that a constant filter standardizes to 0 and not to
NaN. A common filter has a deviation of 0.01 to 1 and is scaled by less than 0.1 %."""

_ADJOINT_MIN = 1e-3
"""Smallest alpha*beta by which <R G, z> is divided out of dL/dz. The division magnifies
float32's rounding (6e-8) by its inverse, here to 6e-5 at most; below it <G, rot(z)> is
computed with a rotation of its own."""

_LAMBDA_MIN = 1e-30
"""Smallest lambda by which dL/dw_l is divided. sigmoid underflows to 0 for omega below
-104; dL/dw_l is 0 there, so that the quotient is 0 and not NaN. It is far below every
lambda that a client reaches, and far above float32's smallest number."""


# The parts of w~ --------------------------------------------------------------------


def standardize_filters(weights: Tensor) -> Tensor:
    """Return std(v) = (v - mean_filter v) / (std_filter v + eps), Eq. 6.

    The unbiased standard deviation is used. A filter of one weight has none and is
    returned as it is.
    """
    return standardize_in_place(weights.clone())[0]


def standardize_in_place(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Set contiguous weights to std(w), Eq. 6; return them and the deviations."""
    flat = weights.reshape(weights.shape[0], -1)
    if flat.shape[1] == 1:
        return weights, torch.ones_like(flat)
    # Two plain passes: torch.std_mean takes three times as long on a CPU.
    flat -= flat.mean(dim=1, keepdim=True)
    deviation = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    deviation /= math.sqrt(flat.shape[1] - 1)
    flat /= deviation + STD_EPS
    return flat.reshape(weights.shape), deviation


def client_share(omega: Tensor) -> Tensor:
    """Return lambda = sigmoid(omega), Eq. 7: the client's share of the fused weight."""
    return torch.sigmoid(omega)


def angle_share(angle: Tensor) -> Tensor:
    """Return |sin angle|, Eq. 8: alpha of theta, beta of gamma.

    Its gradient, sign(sin angle) cos angle (Eq. 22), is left to autograd.
    """
    return torch.sin(angle).abs()


@dataclass(frozen=True)
class MixingScalars:
    """A layer's alpha, beta and lambda as numbers, each in [0, 1]."""

    alpha: float
    beta: float
    lam: float


def mixing_scalars(
    omega: float, theta: float, gamma: float, *, server_alignment: bool = True
) -> MixingScalars:
    """Return the server's lambda (Eq. 7), alpha and beta (Eq. 8) in double precision.

    Without ``server_alignment`` beta and lambda are 1.
    """
    return MixingScalars(
        alpha=abs(math.sin(theta)),
        beta=abs(math.sin(gamma)) if server_alignment else 1.0,
        # sigmoid by tanh: exp(-omega) overflows where omega is far below zero.
        lam=0.5 * (1.0 + math.tanh(omega / 2.0)) if server_alignment else 1.0,
    )


def fused_weight(w_local: Tensor, w_server: Tensor, lam: Tensor) -> Tensor:
    """Return v = lambda * w_l + (1 - lambda) * w_s, Eq. 9."""
    return torch.lerp(w_server, w_local, lam)


def mixed_weight(
    z: Tensor, rotated: Tensor, z_server: Tensor, alpha: float, beta: float
) -> Tensor:
    """Return w~ = z + alpha*beta*(u - z) + alpha*(1-beta)*(z_s - z), Eq. 10, Eq. 26.

    Parameters
    ----------
    z : standardized weights: the fused ones (Eq. 10) or the clients' mean (Eq. 26).
    rotated : u, rot(z) of one client or the mean w_R of all clients.
    z_server : the standardized weights that were broadcast.
    alpha, beta : the layer's scalars.
    """
    mixed = (rotated - z).mul_(alpha * beta).add_(z)
    return mixed.add_((z_server - z).mul_(alpha * (1.0 - beta)))


def _mixed_with_rotation(
    z: Tensor, z_server: Tensor, rotation: Rotation, alpha: float, beta: float
) -> Tensor:
    """Return `mixed_weight` of u = rot(z) without ever storing u (Eq. 10).

    The sum is taken by coefficients, so that the rotation's second product adds to
    what is there; it rounds otherwise than `mixed_weight` in the last bit.
    """
    r1, r2 = rotation
    mixed = (z * (1.0 - alpha)).add_(z_server, alpha=alpha * (1.0 - beta))
    _add_rotated_(mixed, z, r1.t(), r2, scale=alpha * beta, keep=1.0)
    return mixed


def _add_rotated_(
    base: Tensor, weights: Tensor, r1_t: Tensor, r2: Tensor, scale: float, keep: float
) -> None:
    """Set base to keep*base + scale * R1^T X R2 of every filter, in place.

    ``base`` is contiguous and may be ``weights`` itself.
    """
    n1, n2 = r1_t.shape[0], r2.shape[0]
    half = torch.matmul(weights.view(-1, n1, n2), r2)
    left = r1_t.expand(half.shape[0], n1, n1)
    base.view(half.shape).baddbmm_(left, half, beta=keep, alpha=scale)


# sign(w~) and its gradient, step by step ---------------------------------------------


def mixed_sign(
    w_local: Tensor,
    *,
    lam: Tensor,
    alpha: Tensor,
    beta: Tensor,
    w_server: Tensor,
    z_server: Tensor,
    rotation: Rotation,
    sharpness: Sharpness,
) -> Tensor:
    """Return sign(w~) of a client's layer; gradients reach w_l and the three scalars.

    Parameters
    ----------
    w_local : trainable weights (c_o, c_i/groups, k, k).
    lam, alpha, beta : the layer's scalars (0-d tensors), already mapped to [0, 1].
    w_server, z_server : the broadcast weights and their standardized form.
    rotation : the layer's (R1, R2).
    sharpness : surrogate gradient; weights use k = max(1/t, 1).
    """
    t, k = sharpness.weight
    r1, r2 = rotation
    out: Tensor = _MixedSign.apply(  # type: ignore[no-untyped-call]
        w_local, lam, alpha, beta, w_server, z_server, r1, r2, t, k
    )
    return out


class _MixedSign(torch.autograd.Function):
    """sign(w~) as one autograd function instead of thirty nodes.

    Each node would read and write a layer's weights once in every batch. The gradient
    walks back through sign, mixing, standardization and fusing in turn.
    """

    @staticmethod
    def forward(
        ctx: Any,
        w_local: Tensor,
        lam: Tensor,
        alpha: Tensor,
        beta: Tensor,
        w_server: Tensor,
        z_server: Tensor,
        r1: Tensor,
        r2: Tensor,
        t: float,
        k: float,
    ) -> Tensor:
        a, b = float(alpha), float(beta)
        z, deviation = standardize_in_place(fused_weight(w_local, w_server, lam))
        mixed = _mixed_with_rotation(z, z_server, (r1, r2), a, b)
        ctx.save_for_backward(
            w_local, w_server, z, z_server, mixed, deviation, r1, r2, lam
        )
        ctx.settings = (a, b, t, k)
        return channels_last(sign(mixed))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        w_local, w_server, z, z_server, mixed, deviation, r1, r2, lam = (
            ctx.saved_tensors
        )
        a, b, t, k = ctx.settings
        # One array is overwritten from step to step: it is as large as the weights.
        d_mixed = _through_sign(grad, mixed, t, k)
        d_z, d_alpha, d_beta = _through_mixing(d_mixed, z, z_server, (r1, r2), a, b)
        d_local = _through_standardization(d_z, z, deviation, lam)
        d_lam = _through_fusing(d_local, w_local, w_server, lam)
        return (d_local, d_lam, d_alpha, d_beta, *(None,) * 6)


def _through_sign(d_sign: Tensor, mixed: Tensor, t: float, k: float) -> Tensor:
    """Return G = dL/dw~ = dL/dsign(w~) * F'(w~), Eq. 17."""
    return surrogate_backward(d_sign.contiguous(), mixed, t, k)


def _through_mixing(
    g: Tensor,
    z: Tensor,
    z_server: Tensor,
    rotation: Rotation,
    alpha: float,
    beta: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Turn G in place into dL/dz (Eq. 18); return it with dL/dalpha, dL/dbeta (Eq. 19).

        dL/dz     = (1 - alpha) G + alpha*beta * R G,   R G = R1 G R2^T
        dL/dalpha = <G, beta*(u - z_s) + (z_s - z)>,    u = rot(z)
        dL/dbeta  = alpha * <G, u - z_s>

    R G is the adjoint rotation, hence <G, u> = <R G, z>, and R G is a part of dL/dz:
    one product with z gives <G, u> without computing u.
    """
    r1, r2 = rotation
    g_dot_z, g_dot_s = _dot(g, z), _dot(g, z_server)
    use_adjoint = alpha * beta > _ADJOINT_MIN
    g_dot_u = g_dot_z if use_adjoint else _dot(g, rotate(z, rotation))
    _add_rotated_(g, g, r1, r2.t(), scale=alpha * beta, keep=1.0 - alpha)
    if use_adjoint:
        g_dot_u = (_dot(g, z) - (1.0 - alpha) * g_dot_z) / (alpha * beta)
    d_alpha = beta * (g_dot_u - g_dot_s) + (g_dot_s - g_dot_z)
    d_beta = alpha * (g_dot_u - g_dot_s)
    return g, d_alpha, d_beta


def _through_standardization(
    g: Tensor, z: Tensor, deviation: Tensor, lam: Tensor
) -> Tensor:
    """Turn g = dL/dz in place into dL/dw_l = lambda * dL/dv (Eq. 20, Eq. 21).

        dL/dv = (g - mean g - z * (1 + eps/s) * <g, z>/(n-1)) / (s + eps)

    per filter, with its deviation s and n weights. lambda enters with the last factor.
    """
    flat_g, flat_z = g.view(z.shape[0], -1), z.view(z.shape[0], -1)
    n = flat_z.shape[1]
    if n == 1:  # not standardized
        flat_g *= lam
        return g
    coupling = (flat_g * flat_z).sum(dim=1, keepdim=True)
    # A constant filter has s = 0 and z = 0, so that <g, z> is 0: any finite eps/s will
    # do, and with the smallest normal number it is finite (1e-5 / 1e-38 in float32).
    smallest = torch.finfo(z.dtype).tiny
    coupling *= (1.0 + STD_EPS / deviation.clamp_min(smallest)) / (n - 1)
    flat_g -= flat_g.mean(dim=1, keepdim=True)
    flat_g.addcmul_(flat_z, coupling, value=-1.0)
    flat_g *= lam / (deviation + STD_EPS)
    return g


def _through_fusing(
    d_local: Tensor, w_local: Tensor, w_server: Tensor, lam: Tensor
) -> Tensor:
    """Return dL/dlambda = <dL/dv, w_l - w_s>, Eq. 21, with dL/dv = dL/dw_l / lambda."""
    return _dot(d_local, w_local - w_server) / lam.clamp_min(_LAMBDA_MIN)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.dot(a.reshape(-1), b.reshape(-1))

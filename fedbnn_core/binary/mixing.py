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
from fedbnn_core.binary.rotation import Rotation
from fedbnn_core.binary.surrogate import AnySharpness, Number, surrogate_backward

__all__ = [
    "STD_EPS",
    "MixingScalars",
    "angle_share",
    "angle_shares",
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
    """Set contiguous weights to std(w), Eq. 6; return them and |w - mean| per filter.

    That norm is sqrt(n - 1) times the filter's deviation.
    """
    flat = weights.reshape(weights.shape[0], -1)
    if flat.shape[1] == 1:
        return weights, torch.ones_like(flat)
    # Two plain passes: torch.std_mean takes three times as long on a CPU.
    flat -= flat.mean(dim=1, keepdim=True)
    norm = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    flat /= _denominator(norm, flat.shape[1])
    return flat.reshape(weights.shape), norm


def _denominator(norm: Tensor, n: int) -> Tensor:
    """Return s + eps with s = norm / sqrt(n - 1)."""
    return torch.rsub(norm, STD_EPS, alpha=-1.0 / math.sqrt(n - 1))


def client_share(omega: Tensor) -> Tensor:
    """Return lambda = sigmoid(omega), Eq. 7: the client's share of the fused weight."""
    return torch.sigmoid(omega)


def angle_share(angle: Tensor) -> Tensor:
    """Return |sin angle|, Eq. 8: alpha of theta, beta of gamma.

    Its gradient, sign(sin angle) cos angle (Eq. 22), is left to autograd.
    """
    return torch.sin(angle).abs()


def angle_shares(theta: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
    """Return `angle_share` of both angles, computed together."""
    alpha, beta = angle_share(torch.stack((theta, gamma))).unbind()
    return alpha, beta


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
    z: Tensor, z_server: Tensor, rotation: Rotation, alpha: Tensor, beta: Tensor
) -> Tensor:
    """Return `mixed_weight` of u = rot(z) without ever storing u (Eq. 10).

    The sum is taken by coefficients, so that the rotation's second product adds to
    what is there; it rounds otherwise than `mixed_weight` in the last bit.
    """
    r1, r2 = rotation
    both = alpha * beta
    mixed = (z * (1.0 - alpha)).addcmul_(z_server, alpha - both)
    half = _times(z, r2)
    left = (r1.t() * both).expand(half.shape[0], *r1.shape)
    mixed.view(half.shape).baddbmm_(left, half)
    return mixed


def _times(weights: Tensor, r2: Tensor) -> Tensor:
    """Return X R2 of every filter, (filters, n1, n2)."""
    n2 = r2.shape[0]
    return torch.mm(weights.view(-1, n2), r2).view(weights.shape[0], -1, n2)


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
    sharpness: AnySharpness,
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
        t: Number,
        k: Number,
    ) -> Tensor:
        z, norm = standardize_in_place(fused_weight(w_local, w_server, lam))
        mixed = _mixed_with_rotation(z, z_server, (r1, r2), alpha, beta)
        ctx.save_for_backward(
            w_local, w_server, z, z_server, mixed, norm, r1, r2, lam, alpha, beta
        )
        ctx.settings = (t, k)
        # The copy is made first, so that sign, written out here, needs no other.
        return channels_last(mixed).sign_().add_(0.5).sign_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        w_local, w_server, z, z_server, mixed, norm, r1, r2, lam, alpha, beta = (
            ctx.saved_tensors
        )
        # One array is overwritten from step to step: it is as large as the weights.
        d_mixed = _through_sign(grad, mixed, *ctx.settings)
        d_z, d_alpha, d_beta = _through_mixing(
            d_mixed, z, z_server, (r1, r2), alpha, beta
        )
        d_local = _through_standardization(d_z, z, norm, lam)
        d_lam = _through_fusing(d_local, w_local, w_server, lam)
        return (d_local, d_lam, d_alpha, d_beta, *(None,) * 6)


def _through_sign(d_sign: Tensor, mixed: Tensor, t: Number, k: Number) -> Tensor:
    """Return G = dL/dw~ = dL/dsign(w~) * F'(w~), Eq. 17."""
    return surrogate_backward(d_sign.contiguous(), mixed, t, k)


def _through_mixing(
    g: Tensor,
    z: Tensor,
    z_server: Tensor,
    rotation: Rotation,
    alpha: Tensor,
    beta: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Turn G in place into dL/dz (Eq. 18); return it with dL/dalpha, dL/dbeta (Eq. 19).

        dL/dz     = (1 - alpha) G + alpha*beta * R G,   R G = R1 G R2^T
        dL/dalpha = <G, beta*(u - z_s) + (z_s - z)>,    u = rot(z)
        dL/dbeta  = alpha * <G, u - z_s>

    R G is the adjoint rotation, hence <G, u> = <R G, z>: u is not computed.
    """
    r1, r2 = rotation
    turned = torch.matmul(r1, _times(g, r2.t())).view(g.shape)
    g_dot_z, g_dot_s, g_dot_u = _dot(g, z), _dot(g, z_server), _dot(turned, z)
    from_server = g_dot_u - g_dot_s
    d_alpha = torch.addcmul(g_dot_s - g_dot_z, beta, from_server)
    d_beta = alpha * from_server
    d_z = g.mul_(1.0 - alpha).addcmul_(turned, alpha * beta)
    return d_z, d_alpha, d_beta


def _through_standardization(g: Tensor, z: Tensor, norm: Tensor, lam: Tensor) -> Tensor:
    """Turn g = dL/dz in place into dL/dw_l = lambda * dL/dv (Eq. 20, Eq. 21).

        dL/dv = (g - mean g - z * (1 + eps/s) * <g, z>/(n-1)) / (s + eps)
              = (g - mean g) / (s + eps) - z * <g, z> / (sqrt(n-1) * norm)

    per filter of n weights, with its deviation s = norm / sqrt(n-1).
    """
    flat_g, flat_z = g.view(z.shape[0], -1), z.view(z.shape[0], -1)
    n = flat_z.shape[1]
    if n == 1:  # not standardized
        flat_g *= lam
        return g
    coupling = (flat_g * flat_z).sum(dim=1, keepdim=True)
    # A constant filter has norm = 0 and z = 0, so that <g, z> is 0: any divisor above
    # zero will do.
    coupling /= norm.clamp_min(torch.finfo(z.dtype).tiny)
    coupling *= lam
    flat_g -= flat_g.mean(dim=1, keepdim=True)
    flat_g *= lam / _denominator(norm, n)
    flat_g.addcmul_(flat_z, coupling, value=-1.0 / math.sqrt(n - 1))
    return g


def _through_fusing(
    d_local: Tensor, w_local: Tensor, w_server: Tensor, lam: Tensor
) -> Tensor:
    """Return dL/dlambda = <dL/dv, w_l - w_s>, Eq. 21, with dL/dv = dL/dw_l / lambda."""
    return _dot(d_local, w_local - w_server) / lam.clamp_min(_LAMBDA_MIN)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.dot(a.reshape(-1), b.reshape(-1))

"""Sign with the scheduled surrogate gradient, for activations and for weights.

Forward, everywhere: sign(x) = +1 for x >= 0, else -1. Backward (fedbnn.md section 2):

    F'(x) = max(k * (sqrt(2) * t - t^2 * |x|), 0)

The sharpness t grows from 10^-2 to 10^1 over the whole run; see `Sharpness`.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbnn_core.binary.rotation import rotate, sign

__all__ = [
    "STD_EPS",
    "Sharpness",
    "activation_sign",
    "channels_last",
    "mixed_sign",
    "standardize_filters",
    "standardize_in_place",
    "surrogate_gradient",
]

STD_EPS = 1e-5
_LOG_T_MIN, _LOG_T_MAX = -2.0, 1.0


@dataclass(frozen=True)
class Sharpness:
    """The t and k of the surrogate gradient at one moment of the run.

    t = 10^(Tmin + (Tmax - Tmin) * (r*N_e + e) / (N_r*N_e)), with Tmin = -2, Tmax = 1.
    Weights use k = max(1/t, 1); activations use k = 1 and max(t, 1).
    """

    t: float

    @classmethod
    def at(
        cls, round_index: int, num_rounds: int, epoch: int, num_epochs: int
    ) -> "Sharpness":
        """Return the sharpness for a round and local epoch, both counted from 0."""
        share = (round_index * num_epochs + epoch) / (num_rounds * num_epochs)
        return cls(10.0 ** (_LOG_T_MIN + (_LOG_T_MAX - _LOG_T_MIN) * share))

    @property
    def weight(self) -> tuple[float, float]:
        """Return (t, k) for weights."""
        return self.t, max(1.0 / self.t, 1.0)

    @property
    def activation(self) -> tuple[float, float]:
        """Return (t, k) for activations."""
        return max(self.t, 1.0), 1.0


def surrogate_gradient(x: Tensor, t: float, k: float) -> Tensor:
    """Return F'(x) = max(k * (sqrt(2) * t - t^2 * |x|), 0)."""
    return _surrogate_backward(torch.ones_like(x), x, t, k)


def _surrogate_backward(
    grad: Tensor, x: Tensor, t: float, k: float, limit: float = math.inf
) -> Tensor:
    """Return grad * F'(x) where |x| < limit, else 0, in four vectorised passes."""
    # F' is positive up to |x| = sqrt(2)/t: masking there replaces the maximum with 0.
    limit = min(limit, math.sqrt(2.0) / t)
    masked = torch.ops.aten.hardtanh_backward(grad, x, -limit, limit)
    return torch.rsub(x.abs(), k * math.sqrt(2.0) * t, alpha=k * t * t).mul_(masked)


class _ActivationSign(torch.autograd.Function):
    """sign(hardtanh(x)) - shift in one pass each way.

    hardtanh changes no sign; it only stops the gradient where |x| >= 1.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shift: float, t: float, k: float, clamp: bool
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.settings = (t, k, clamp)
        out = sign(x)
        return out.sub_(shift) if shift else out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        (x,) = ctx.saved_tensors
        t, k, clamp = ctx.settings
        limit = 1.0 if clamp else math.inf
        return _surrogate_backward(grad, x, t, k, limit), None, None, None, None


def activation_sign(
    x: Tensor, *, sharpness: Sharpness, clamp: bool, shift: float = 0.0
) -> Tensor:
    """Return sign(x) - shift with the surrogate gradient of activations.

    Parameters
    ----------
    x : pre-activations.
    sharpness : activations use k = 1 and max(t, 1).
    clamp : whether a hardtanh stands before the sign (it masks the gradient).
    shift : a constant to subtract in the same pass.
    """
    t, k = sharpness.activation
    out: Tensor = _ActivationSign.apply(  # type: ignore[no-untyped-call]
        x, shift, t, k, clamp
    )
    return out


def standardize_filters(weights: Tensor) -> Tensor:
    """Return std(v) = (v - mean_filter v) / (std_filter v + eps), per output filter.

    The unbiased standard deviation is used. A filter of one weight has none and is
    returned as it is.
    """
    return standardize_in_place(weights.clone())[0]


def standardize_in_place(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Set contiguous weights to std(w); return them and the filters' deviations."""
    flat = weights.reshape(weights.shape[0], -1)
    if flat.shape[1] == 1:
        return weights, torch.ones_like(flat)
    # Two plain passes: torch.std_mean takes three times as long on a CPU.
    flat -= flat.mean(dim=1, keepdim=True)
    deviation = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    deviation /= math.sqrt(flat.shape[1] - 1)
    flat /= deviation + STD_EPS
    return flat.reshape(weights.shape), deviation


def channels_last(weights: Tensor) -> Tensor:
    """Return a copy in channels-last layout, the one CPU convolutions run fastest in.

    The strides are set explicitly: for one input channel `Tensor.to` would keep the
    plain layout, and the whole network behind the layer would follow it.
    """
    _, c, h, w = weights.shape
    strides = (c * h * w, 1, w * c, c)
    out = torch.empty_strided(
        weights.shape, strides, dtype=weights.dtype, device=weights.device
    )
    return out.copy_(weights)


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


class _MixedSign(torch.autograd.Function):
    """sign(w~) of one layer, with the hand-derived gradient of fedbnn.md section 2.

    One function instead of thirty autograd nodes, because a layer's weights are read
    and written once per node in every batch. For G = dL/dsign(w~) * F'(w~):

        dL/dz     = (1 - alpha) G + alpha*beta * R G
        dL/dalpha = <G, beta*(u - z_s) + (z_s - z)>,  dL/dbeta = alpha * <G, u - z_s>
        dL/dv     = (g - mean g - z*(1 + eps/s) * <g, z>/(n-1)) / (s + eps),  g = dL/dz
        dL/dw_l   = lambda * dL/dv,                   dL/dlambda = <dL/dv, w_l - w_s>

    where v = lambda*w_l + (1-lambda)*w_s, z = std(v), u = rot(z), z_s = std(w_s), and
    R G is the adjoint rotation R1 G R2^T; <G, u> = <R G, z>.
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
        z, deviation = standardize_in_place(torch.lerp(w_server, w_local, lam))
        mixed = (z * (1.0 - a)).add_(z_server, alpha=a * (1.0 - b))
        _add_rotated_(mixed, z, r1.t(), r2, scale=a * b, keep=1.0)
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
        g = _surrogate_backward(grad.contiguous(), mixed, t, k)
        g_dot_z, g_dot_s = _dot(g, z), _dot(g, z_server)
        use_adjoint = a * b > 1e-3
        g_dot_u = g_dot_z if use_adjoint else _dot(g, rotate(z, (r1, r2)))
        # From here on g is overwritten: with dL/dz, then dL/dv, then dL/dw_l.
        _add_rotated_(g, g, r1, r2.t(), scale=a * b, keep=1.0 - a)
        if use_adjoint:
            g_dot_u = (_dot(g, z) - (1.0 - a) * g_dot_z) / (a * b)
        grad_alpha = b * (g_dot_u - g_dot_s) + (g_dot_s - g_dot_z)
        grad_beta = a * (g_dot_u - g_dot_s)

        flat_g, flat_z = g.view(z.shape[0], -1), z.view(z.shape[0], -1)
        n = flat_z.shape[1]
        if n > 1:
            tiny = torch.finfo(z.dtype).tiny
            coupling = (flat_g * flat_z).sum(dim=1, keepdim=True)
            coupling *= (1.0 + STD_EPS / deviation.clamp_min(tiny)) / (n - 1)
            flat_g -= flat_g.mean(dim=1, keepdim=True)
            flat_g.addcmul_(flat_z, coupling, value=-1.0)
            flat_g *= lam / (deviation + STD_EPS)
        else:
            flat_g *= lam
        grad_lam = _dot(g, w_local - w_server) / lam.clamp_min(1e-30)
        return (g, grad_lam, grad_alpha, grad_beta, *(None,) * 6)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.dot(a.reshape(-1), b.reshape(-1))


def mixed_sign(
    w_local: Tensor,
    *,
    lam: Tensor,
    alpha: Tensor,
    beta: Tensor,
    w_server: Tensor,
    z_server: Tensor,
    rotation: tuple[Tensor, Tensor],
    sharpness: Sharpness,
) -> Tensor:
    """Return sign(w~), w~ = (1-alpha) z + alpha*beta*rot(z) + alpha*(1-beta)*std(w_s).

    Here z = std(lambda*w_l + (1-lambda)*w_s): the fused and mixed weights of
    fedbnn.md section 2. Gradients reach w_l and the three scalars.

    Parameters
    ----------
    w_local : trainable weights (c_o, c_i/groups, k, k).
    lam, alpha, beta : the layer's scalars (0-d tensors), already mapped to [0, 1].
    w_server, z_server : the broadcast weights and their standardised form.
    rotation : the layer's (R1, R2).
    sharpness : surrogate gradient; weights use k = max(1/t, 1).
    """
    t, k = sharpness.weight
    r1, r2 = rotation
    out: Tensor = _MixedSign.apply(  # type: ignore[no-untyped-call]
        w_local, lam, alpha, beta, w_server, z_server, r1, r2, t, k
    )
    return out

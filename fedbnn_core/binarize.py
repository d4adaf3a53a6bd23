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

from fedbnn_core.rotation import rotate, rotate_back, sign

__all__ = [
    "STD_EPS",
    "Sharpness",
    "mixed_sign",
    "padded_sign",
    "standardize_filters",
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
    return x.abs().mul_(-k * t * t).add_(k * math.sqrt(2.0) * t).clamp_min_(0.0)


class _PaddedSign(torch.autograd.Function):
    """sign(hardtanh(x)) inside a border of ones, in one pass each way.

    Padding with +1 keeps every tap of a binary convolution in {-1, +1}, so a packed
    kernel needs no border correction. hardtanh changes no sign; it only stops the
    gradient where |x| > 1.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, padding: int, t: float, k: float, clamp: bool
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.settings = (padding, t, k, clamp)
        if padding == 0:
            return sign(x)
        n, c, h, w = x.shape
        out = x.new_ones((n, c, h + 2 * padding, w + 2 * padding))
        # ge gives 0/1; 2*[x >= 0] - 1 is the sign.
        inner = out[:, :, padding : padding + h, padding : padding + w]
        torch.ge(x, 0.0, out=inner)
        inner.mul_(2.0).sub_(1.0)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        padding, t, k, clamp = ctx.settings
        _, _, h, w = x.shape
        inner = grad[:, :, padding : padding + h, padding : padding + w]
        slope = surrogate_gradient(x, t, k)
        if clamp:
            slope.masked_fill_(x.abs() > 1.0, 0.0)
        return slope.mul_(inner), None, None, None, None


def padded_sign(
    x: Tensor, *, padding: int, sharpness: Sharpness, clamp: bool
) -> Tensor:
    """Return sign(x), (n, c, h, w), with ``padding`` rings of +1 around it.

    Parameters
    ----------
    x : pre-activations.
    padding : width of the border of ones.
    sharpness : surrogate gradient; activations use k = 1 and max(t, 1).
    clamp : whether a hardtanh stands before the sign (it masks the gradient).
    """
    t, k = sharpness.activation
    out: Tensor = _PaddedSign.apply(x, padding, t, k, clamp)
    return out


def standardize_filters(weights: Tensor) -> Tensor:
    """Return std(v) = (v - mean_filter v) / (std_filter v + eps), per output filter.

    The unbiased standard deviation is used. A filter of one weight has none and is
    returned as it is.
    """
    return _standardize(weights)[0]


def _standardize(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the standardised weights and the filters' standard deviations."""
    flat = weights.reshape(weights.shape[0], -1)
    if flat.shape[1] == 1:
        return weights, torch.ones_like(flat)
    deviation, mean = torch.std_mean(flat, dim=1, keepdim=True)
    z = (flat - mean).div_(deviation + STD_EPS)
    return z.reshape(weights.shape), deviation


class _MixedSign(torch.autograd.Function):
    """sign(w~) of one layer, with the hand-derived gradient of fedbnn.md section 2.

    One function instead of a dozen autograd nodes: the weights of a layer are read a
    few times per batch instead of thirty. Gradients, for G = dL/dsign(w~) * F'(w~):

        dL/dz     = (1 - alpha) G + alpha*beta * R G            (R G: `rotate_back`)
        dL/dalpha = <G, beta*(u - z_s) + (z_s - z)>,  dL/dbeta = alpha * <G, u - z_s>
        dL/dv     = (g - mean g - z*(1 + eps/s) * <g, z>/(n-1)) / (s + eps),  g = dL/dz
        dL/dw_l   = lambda * dL/dv,                   dL/dlambda = <dL/dv, w_l - w_s>

    where v = lambda*w_l + (1-lambda)*w_s, z = std(v), u = rot(z), z_s = std(w_s).
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
        fused = torch.lerp(w_server, w_local, lam)
        z, deviation = _standardize(fused)
        u = rotate(z, (r1, r2))
        a, b = float(alpha), float(beta)
        mixed = z * (1.0 - a)
        mixed.add_(u, alpha=a * b).add_(z_server, alpha=a * (1.0 - b))
        ctx.save_for_backward(
            w_local, w_server, z, z_server, u, mixed, deviation, r1, r2, lam
        )
        ctx.settings = (a, b, t, k)
        return sign(mixed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        w_local, w_server, z, z_server, u, mixed, deviation, r1, r2, lam = (
            ctx.saved_tensors
        )
        a, b, t, k = ctx.settings
        g_mixed = surrogate_gradient(mixed, t, k).mul_(grad)
        g_dot_z, g_dot_u, g_dot_s = (
            torch.dot(g_mixed.reshape(-1), other.reshape(-1))
            for other in (z, u, z_server)
        )
        grad_alpha = b * (g_dot_u - g_dot_s) + (g_dot_s - g_dot_z)
        grad_beta = a * (g_dot_u - g_dot_s)
        g_z = rotate_back(g_mixed, (r1, r2)).mul_(a * b).add_(g_mixed, alpha=1.0 - a)

        flat_g, flat_z = g_z.reshape(z.shape[0], -1), z.reshape(z.shape[0], -1)
        n = flat_z.shape[1]
        if n > 1:
            tiny = torch.finfo(z.dtype).tiny
            coupling = (flat_g * flat_z).sum(dim=1, keepdim=True)
            coupling *= (1.0 + STD_EPS / deviation.clamp_min(tiny)) / (n - 1)
            flat_g = flat_g - flat_g.mean(dim=1, keepdim=True)
            flat_g.addcmul_(flat_z, coupling, value=-1.0).div_(deviation + STD_EPS)
        g_fused = flat_g.reshape(z.shape)
        grad_lam = torch.dot(g_fused.reshape(-1), (w_local - w_server).reshape(-1))
        grad_w = g_fused * lam
        return (
            grad_w,
            grad_lam,
            grad_alpha,
            grad_beta,
            None,
            None,
            None,
            None,
            None,
            None,
        )


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
    out: Tensor = _MixedSign.apply(
        w_local, lam, alpha, beta, w_server, z_server, r1, r2, t, k
    )
    return out

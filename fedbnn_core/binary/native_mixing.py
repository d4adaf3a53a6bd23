"""The mixed sign of a client's layer in C, for float32 on a CPU.

The steps are those of `mixing`, where they are explained; a filter stays in the cache
from the first to the last. The two round differently in the last bits.
"""

import math
from typing import Any

import torch
from torch import Tensor

from fedbnn_core.binary import native_steps
from fedbnn_core.binary.mixing import STD_EPS
from fedbnn_core.binary.rotation import Rotation
from fedbnn_core.binary.surrogate import AnySharpness

__all__ = ["native_mixed_sign", "takes"]


def takes(weights: Tensor) -> bool:
    """Return whether there is native code for these weights."""
    return (
        native_steps.takes(weights)
        and weights.is_contiguous()
        and weights[0].numel() > 1
    )


def native_mixed_sign(
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
    """Return `mixing.mixed_sign` of weights that `takes` accepts."""
    out: Tensor = _NativeMixedSign.apply(  # type: ignore[no-untyped-call]
        w_local, lam, alpha, beta, w_server, z_server, *rotation, *sharpness.weight
    )
    return out


class _NativeMixedSign(torch.autograd.Function):
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
        filters, taps = w_local.shape[0], w_local[0, 0].numel()
        n1, n2 = len(r1), len(r2)
        ctx.kept = tuple(m.contiguous() for m in (w_server, z_server, r1, r2))
        ctx.sizes = (filters, n1, n2, taps)
        ctx.numbers = (
            *(float(x) for x in (lam, alpha, beta)),
            1.0 / math.sqrt(n1 * n2 - 1),
            STD_EPS,
            k * math.sqrt(2.0) * t,
            k * t * t,
        )
        mixed, moments = torch.empty_like(w_local), torch.empty(filters, 2)
        signs = torch.empty_like(w_local, memory_format=torch.channels_last)
        native_steps.library().mix(
            *_arguments(ctx, w_local), _addresses(4, mixed, moments, signs)
        )
        ctx.save_for_backward(w_local, mixed, moments)
        return signs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        w_local, mixed, moments = ctx.saved_tensors
        grad, dw = grad.contiguous(), torch.empty_like(w_local)
        alpha, beta, lam = native_steps.library().mix_gradient(
            *_arguments(ctx, w_local), _addresses(4, grad, mixed, moments, dw)
        )
        scalars = (torch.tensor(s, dtype=dw.dtype) for s in (lam, alpha, beta))
        return (dw, *scalars, *(None,) * 6)


def _arguments(ctx: Any, w_local: Tensor) -> tuple[Any, ...]:
    kept = _addresses(5, w_local, *ctx.kept)
    return native_steps.kernel(), ctx.sizes, ctx.numbers, kept


def _addresses(count: int, *tensors: Tensor) -> tuple[int, ...]:
    """Return so many addresses, 0 where there is no tensor."""
    return (*(t.data_ptr() for t in tensors), *(0,) * (count - len(tensors)))

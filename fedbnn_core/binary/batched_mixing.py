"""sign(w~) of many layers at once, in few operations: for accelerators.

There an operation costs its launch, some microseconds, before it touches a weight.
`mixing.mixed_sign` takes about sixty a layer; here layers of one shape are stacked, and
what belongs to a filter or a layer is one tensor for all of them. The formulas are
those of `mixing`, to rounding.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedbnn_core.binary.mixing import STD_EPS
from fedbnn_core.binary.mixing_plan import LayerStack, MixingPlan, stacked
from fedbnn_core.binary.surrogate import AnySharpness, Number, surrogate_backward

__all__ = ["mixed_signs"]

_VARIANCE_EPS = 1e-30
"""Added to a filter's variance, so that a constant filter has a finite 1/s."""


def mixed_signs(
    plan: MixingPlan,
    weights: Sequence[Tensor],
    scalars: Sequence[tuple[Tensor, Tensor, Tensor]],
    sharpness: AnySharpness,
) -> tuple[Tensor, ...]:
    """Return `mixing.mixed_sign` of every layer of a plan, in channels-last layout.

    Gradients reach the weights and the scalars.

    Parameters
    ----------
    plan : what the layers do not train.
    weights : trainable weights (c_o, c_i/groups, k, k), as the plan orders the layers.
    scalars : omega, theta and gamma of each layer (0-d tensors).
    sharpness : surrogate gradient; weights use k = max(1/t, 1).
    """
    t, k = sharpness.weight
    leaves = [part for parts in zip(*scalars, strict=True) for part in parts]
    signs: tuple[Tensor, ...] = _MixedSigns.apply(  # type: ignore[no-untyped-call]
        plan, t, k, *leaves, *weights
    )
    return signs


class _MixedSigns(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: MixingPlan, t: Number, k: Number, *leaves: Tensor
    ) -> tuple[Tensor, ...]:
        count = len(leaves) // 4
        angles = torch.stack(leaves[: 3 * count]).view(3, count)
        lam, sines = torch.sigmoid(angles[0]), torch.sin(angles[1:])
        alpha, beta = sines.abs()
        if not plan.server_alignment:
            lam, beta = torch.ones_like(lam), torch.ones_like(beta)
        stacked = [_rows(leaves[3 * count :][s.layers]) for s in plan.stacks]
        normed, inverse = [], []
        for stack, w in zip(plan.stacks, stacked, strict=True):
            v = torch.lerp(stack.w_server, w, stack.of_layers(lam))
            # (v - mean) / s with the biased deviation s.
            x, _, rstd = torch.native_layer_norm(
                v, v.shape[2:], None, None, _VARIANCE_EPS
            )
            normed.append(x)
            inverse.append(rstd.view(-1))
        rstd = torch.cat(inverse)
        # z = x / stretch: the unbiased deviation, and eps added to it.
        stretch = torch.add(plan.unbiased, rstd, alpha=STD_EPS)
        mixed = rstd.new_empty(sum(x.numel() for x in normed))
        out = torch.empty_like(mixed)
        for stack, x in zip(plan.stacks, normed, strict=True):
            z = x.div_(stack.of_rows(stretch))
            aim = torch.lerp(stack.z_server, stack.rotate(z), stack.of_layers(beta))
            own = stack.of_weights(mixed)
            torch.lerp(z, aim, stack.of_layers(alpha), out=own)
            plain = own.view(-1, *stack.kernel).permute(0, 2, 3, 1)
            torch.lt(plain, 0.0, out=stack.channels_last(out))
        out.mul_(-2.0).add_(1.0)
        ctx.save_for_backward(
            angles, lam, alpha, beta, sines, rstd, stretch, mixed, *normed, *stacked
        )
        ctx.plan, ctx.sharpness = plan, (t, k)
        signs = [
            sign.permute(0, 3, 1, 2)
            for stack in plan.stacks
            for sign in stack.channels_last(out).chunk(stack.w_server.shape[0])
        ]
        return tuple(signs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        plan: MixingPlan = ctx.plan
        angles, lam, alpha, beta, sines, rstd, stretch, mixed, *rest = ctx.saved_tensors
        normed, stacked = rest[: len(plan.stacks)], rest[len(plan.stacks) :]
        g = torch.empty_like(mixed)
        for stack in plan.stacks:
            own = stack.of_weights(g).view(-1, *stack.kernel)
            own.copy_(_joined(grads[stack.layers]))
        g = surrogate_backward(g, mixed, *ctx.sharpness)  # dL/dw~
        turned = [stack.rotate_back(stack.of_weights(g)) for stack in plan.stacks]
        # Of every filter <g, z>, <R g, z> = <g, rot(z)> and <g, z_server>.
        along = _row_products(plan, g, normed)
        along_turned = [_row_product(t, z) for t, z in zip(turned, normed, strict=True)]
        along_server = _row_products(plan, g, [s.z_server for s in plan.stacks])
        products = torch.cat([*along, *along_turned, *along_server]).view(3, -1)
        g_dot_z, g_dot_u, g_dot_s = products @ plan.membership
        from_server = g_dot_u - g_dot_s
        d_alpha = torch.addcmul(g_dot_s - g_dot_z, beta, from_server)
        d_beta = alpha * from_server
        # lambda * dL/dv of a filter is own * g + turned * R g + drift * z, without the
        # part that standardization takes out.
        kept = lam - lam * alpha
        shares = torch.stack((kept, (lam - kept) * beta))
        wide = stretch.square()
        own, turn = factors = shares[:, plan.layer_of_row] * (rstd / wide)
        drift = (factors * products[:2]).sum(dim=0) * (wide * rstd) * plan.eps_share
        d_weights, along_change = [], []
        for stack, z, w, r_g in zip(plan.stacks, normed, stacked, turned, strict=True):
            d_z = stack.of_weights(g).mul_(stack.of_rows(own))
            d_z.addcmul_(r_g, stack.of_rows(turn))
            d_w = _through_norm(d_z, z, stack, plan.zeros, stretch)
            d_w.addcmul_(z, stack.of_rows(drift))
            along_change.append(_row_product(d_w, w - stack.w_server))
            d_weights += [d.view(-1, *stack.kernel) for d in d_w.unbind()]
        d_omega = (torch.cat(along_change) @ plan.membership) * (1.0 - lam)
        slopes = torch.cos(angles[1:]) * sines.sign()
        d_theta, d_gamma = slopes * torch.stack((d_alpha, d_beta))
        unused: list[Tensor | None] = [None] * len(lam)
        aligned = plan.server_alignment
        return (
            *(None, None, None),
            *(d_omega.unbind() if aligned else unused),
            *d_theta.unbind(),
            *(d_gamma.unbind() if aligned else unused),
            *d_weights,
        )


def _rows(weights: Sequence[Tensor]) -> Tensor:
    """Return weights of one shape as (layers, filters, n)."""
    return stacked([w.reshape(w.shape[0], -1) for w in weights])


def _joined(grads: Sequence[Tensor]) -> Tensor:
    """Return gradients of one shape, their filters one behind the other."""
    if len(grads) == 1:
        return grads[0]
    # As they are stored, so that they are copied at once.
    return torch.cat([g.permute(0, 2, 3, 1) for g in grads]).permute(0, 3, 1, 2)


def _row_products(
    plan: MixingPlan, values: Tensor, others: Sequence[Tensor]
) -> list[Tensor]:
    """Return `_row_product` of a plan's weights with tensors, one a stack."""
    return [
        _row_product(stack.of_weights(values), other)
        for stack, other in zip(plan.stacks, others, strict=True)
    ]


def _row_product(a: Tensor, b: Tensor) -> Tensor:
    """Return <a, b> of every filter, (layers * filters,)."""
    n = a.shape[2]
    return torch.bmm(a.view(-1, 1, n), b.reshape(-1, n, 1)).view(-1)


def _through_norm(
    g: Tensor, z: Tensor, stack: LayerStack, zeros: Tensor, stretch: Tensor
) -> Tensor:
    """Return stretch * (g - mean g - x <g, x> / n), x = stretch * z, per filter."""
    d: Tensor = torch.ops.aten.native_layer_norm_backward(
        g,
        z,
        z.shape[2:],
        stack.of_rows(zeros),
        stack.of_rows(stretch),
        None,
        None,
        [True, False, False],
    )[0]
    return d

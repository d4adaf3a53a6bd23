"""FedBAT's 1-bit update of a layer: stochastic signs times a learned step size.

Per layer alpha = clamp(a0 * exp(rho * a~), 5e-4, 5e-2).
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedbnn_core.training.weight_update import WeightUpdate

__all__ = [
    "MAX_STEP_SIZE",
    "MIN_STEP_SIZE",
    "BinaryUpdate",
    "stochastic_sign",
]

MIN_STEP_SIZE, MAX_STEP_SIZE = 5e-4, 5e-2


class _StochasticSign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor, uniform: Tensor) -> Tensor:
        # floor(q + U) clamped to {0, 1} is 1 exactly where q + U >= 1, and
        # q - 1 = (x/alpha - 1)/2. The sum is never -0, so copysign gives + at 0.
        signed = torch.copysign(alpha, uniform.add(x / alpha - 1.0, alpha=0.5))
        ctx.save_for_backward(x, alpha, signed)
        return signed

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        x, alpha, signed = ctx.saved_tensors
        inside = x.abs() <= alpha
        # Beyond +-alpha the sign is certain, so c = S / alpha there.
        return g * inside, (g * (signed - x * inside)).sum() / alpha, None


def stochastic_sign(x: Tensor, alpha: Tensor, uniform: Tensor) -> Tensor:
    """Return S(x, alpha): +alpha with probability clip((1 + x/alpha)/2, 0, 1).

    Otherwise -alpha, so E[S] = clip(x, -alpha, alpha). For an upstream gradient g

        dL/dx     = g where |x| <= alpha, else 0
        dL/dalpha = sum_i g_i c_i,  c_i = (S_i - x_i)/alpha where |x_i| <= alpha,
                                    else sign(x_i).

    Parameters
    ----------
    x : any shape.
    alpha : scalar tensor > 0.
    uniform : U in [0, 1), a fresh draw in the shape of ``x``.
    """
    signs: Tensor = _StochasticSign.apply(x, alpha, uniform)  # type: ignore[no-untyped-call]
    return signs


class BinaryUpdate(WeightUpdate):
    """u = m in the warm-up, then u = S(m, alpha).

    Trainable: ``m`` and ``a`` (a~ above), both zero at the start of a round.

    Parameters
    ----------
    weight : the weight it is attached to; gives shape, device and memory layout.
    rho : how fast the step size learns; 0 freezes it at mean |m|.
    """

    start: Tensor

    def __init__(self, weight: Tensor, *, rho: float) -> None:
        super().__init__()
        self.rho = rho
        self.m = nn.Parameter(torch.zeros_like(weight))
        self.a = nn.Parameter(torch.zeros((), device=weight.device))
        # a0 is set by `begin_signs`; until then nothing uses it.
        self.register_buffer("start", torch.zeros((), device=weight.device))
        self.signs_on = False
        self._generator = torch.Generator(weight.device)

    @torch.no_grad()
    def begin_round(self, seed: int) -> None:
        """Forget the last round; ``seed`` fixes every draw of this one."""
        self.m.zero_()
        self.a.zero_()
        self.signs_on = False
        if self._generator.device != self.m.device:
            self._generator = torch.Generator(self.m.device)
        self._generator.manual_seed(seed)

    @torch.no_grad()
    def begin_signs(self) -> None:
        """End the warm-up: a0 = mean |m|, and from now on u = S(m, alpha)."""
        self.start.copy_(self.m.abs().mean())
        self.signs_on = True

    def step_size(self) -> Tensor:
        """Return alpha = clamp(a0 * exp(rho * a~), 5e-4, 5e-2)."""
        alpha = self.start * torch.exp(self.rho * self.a)
        return alpha.clamp(MIN_STEP_SIZE, MAX_STEP_SIZE)

    def update(self) -> Tensor:
        """Return m, or a fresh draw of S(m, alpha) once the warm-up is over."""
        if not self.signs_on:
            return self.m
        uniform = torch.empty_like(self.m).uniform_(generator=self._generator)
        return stochastic_sign(self.m, self.step_size(), uniform)

    @torch.no_grad()
    def draw(self) -> tuple[NDArray[np.bool_], np.float32]:
        """Return the signs (True is +) of one more draw, and alpha: the upload."""
        if not self.signs_on:
            self.begin_signs()
        return (self.update() > 0).cpu().numpy(), np.float32(float(self.step_size()))

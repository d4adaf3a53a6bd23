"""Round gradients to a few bits at random, the same way on every machine.

A value v, scaled to whole levels, becomes floor(v + u) with u uniform in [0, 1): right
on average. u is a hash of the value's position and a key, so that a run that is
repeated or resumed rounds alike, and native code can compute it in any order.
"""

import torch
from torch import Tensor

__all__ = ["LEVELS", "Key", "epoch_key", "round_gradient", "step_key", "uniform"]

LEVELS = {8: 127, 6: 31, 4: 7}
"""Largest rounded value for a gradient of so many bits; zero is always a level."""

Key = tuple[int, int]
"""Two words of 32 bits that choose one sequence of random numbers."""

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 0xFFFFFFFF


def _mix(x: int) -> int:
    """Return a 64-bit hash of a 64-bit number (the finalizer of SplitMix64)."""
    x &= 2**64 - 1
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
    return x ^ (x >> 31)


def epoch_key(seed: int, layer: int) -> int:
    """Return what one layer's keys of an epoch start from."""
    return _mix(_mix(seed) + (layer + 1) * _GOLDEN)


def step_key(epoch: int, step: int) -> Key:
    """Return the key of one training step."""
    mixed = _mix(epoch + (step + 1) * _GOLDEN)
    return mixed & _WORD, mixed >> 32


def uniform(shape: torch.Size, key: Key, device: torch.device) -> Tensor:
    """Return u in [0, 1), float32 (n, c, h, w), counted along (n, h, w, c)."""
    n, c, h, w = shape
    x = torch.arange(n * h * w * c, device=device).add_(key[0]).bitwise_and_(_WORD)
    x ^= x >> 16
    x = (x * 0x7FEB352D).bitwise_and_(_WORD)
    x ^= x >> 15
    x ^= key[1]
    x = (x * 0x846CA68B).bitwise_and_(_WORD)
    x ^= x >> 16
    u = (x >> 8).to(torch.float32) * 2.0**-24
    return u.view(n, h, w, c).permute(0, 3, 1, 2)


def round_gradient(grad: Tensor, bits: int, key: Key) -> tuple[Tensor, Tensor]:
    """Return whole numbers q (float32) and the scale s with grad ~ q * s.

    s is the largest magnitude over the number of levels. Where that is not finite, q
    is zero and s carries the NaN or infinity on.
    """
    levels = LEVELS[bits]
    largest = grad.abs().amax()
    # Of two tensors: torch divides a number by a tensor in two steps, rounding twice.
    most = torch.full_like(largest, levels)
    inverse = torch.where(largest > 0, most / largest, 0.0)
    q = (grad * inverse).add_(uniform(grad.shape, key, grad.device)).floor_()
    q = q.clamp_(-levels, levels)
    return torch.where(largest.isfinite(), q, 0.0), largest / most

"""Fold what follows a layer into as few packed operations as possible.

A layer's result goes through steps: bias, batch norm, scale, residual, clamp, pooling.
Where only signs are read behind a binary convolution, all steps become one integer
threshold per channel and pooling of bits. Elsewhere an operation takes the steps into
its epilogue, which has a fixed order; a step that comes too late for it gets an
operation of its own, a maximum over windows of one pixel.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbnn_core.packed.builder import GraphBuilder, Value
from fedbnn_core.packed.graph import WITHOUT_EPILOGUE, Kind, present
from fedbnn_core.packed.threshold import fold_thresholds, reachable_sums

__all__ = [
    "CLAMP",
    "Draft",
    "Pool",
    "Rank",
    "Step",
    "array",
    "emit",
    "norm_step",
    "residual_step",
    "scale_step",
    "shift_step",
]

Floats = npt.NDArray[np.float32]
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d


class Rank(IntEnum):
    """The order of an operation's epilogue."""

    START = 0
    BIAS = 1
    AFFINE = 2
    SCALE = 3
    RESIDUAL = 4
    CLAMP = 5


@dataclass(frozen=True)
class Step:
    """One step of an epilogue."""

    rank: Rank
    fields: dict[str, Any]
    """The operation's fields that stand for it."""
    apply: Callable[[Tensor], Tensor]
    """The same on values (1, c, 1, n), rounded as torch rounds."""
    residual: Value | None = None


@dataclass(frozen=True)
class Pool:
    """The maximum over windows."""

    kernel: tuple[int, int]
    stride: int


@dataclass
class Draft:
    """A layer's result and the steps behind it, before they become operations."""

    shape: tuple[int, int, int]
    """Channels, height, width."""
    kind: Kind | None
    """What the layer is; None if the steps begin at ``source``."""
    source: Value | None
    fields: dict[str, Any] = field(default_factory=dict)
    steps: tuple[Step | Pool, ...] = ()
    value: Value | None = None
    """The result, once its operations are written."""
    bits_only: bool = False
    """Whether all readers are binary convolutions, which look at signs alone."""
    shared: bool = False
    """Whether it has several readers, so that it must stay as it is."""

    def takes(self, rank: Rank) -> bool:
        """Say whether a step of that rank needs no operation of its own."""
        last = self.steps[-1] if self.steps else None
        if self.shared or (self.kind is None and last is None):
            return False
        if last is None:
            return self.kind not in WITHOUT_EPILOGUE
        return isinstance(last, Pool) or last.rank < rank


def array(tensor: Tensor) -> Floats:
    """Return a tensor as float32 numpy array."""
    return tensor.detach().cpu().float().numpy()


CLAMP = Step(Rank.CLAMP, {"clamp": True}, F.hardtanh)


def norm_step(norm: BatchNorm) -> Step:
    """Return BN as gain and offset, rounded as torch's kernel rounds them.

    fma(x, gain, offset) with gain = gamma * (1 / sqrt(var + eps)) and
    offset = beta - mean * gain in one rounding.
    """
    mean = present(norm.running_mean).detach().cpu()
    variance = present(norm.running_var).detach().cpu()
    gamma, beta = (
        torch.full_like(mean, value) if part is None else part.detach().cpu()
        for part, value in ((norm.weight, 1.0), (norm.bias, 0.0))
    )
    inverse = np.float32(1) / np.sqrt(array(variance) + np.float32(norm.eps))
    gain = (inverse * array(gamma)).astype(np.float32)
    offset = array(beta) - array(mean).astype(np.float64) * gain

    def apply(values: Tensor) -> Tensor:
        return F.batch_norm(values, mean, variance, gamma, beta, eps=norm.eps)

    fields = {"gain": gain, "offset": offset.astype(np.float32)}
    return Step(Rank.AFFINE, fields, apply)


def shift_step(shift: Floats) -> Step:
    """Return v + shift, one number per channel."""
    column = torch.from_numpy(shift.copy())[:, None, None]
    return Step(Rank.BIAS, {"bias": shift}, lambda values: values + column)


def scale_step(scale: Floats) -> Step:
    """Return v * scale, one number per channel."""
    column = torch.from_numpy(scale.copy())[:, None, None]
    return Step(Rank.SCALE, {"scale": scale}, lambda values: values * column)


def residual_step(value: Value) -> Step:
    """Return v + value. It has no function of v alone, so no threshold."""
    return Step(Rank.RESIDUAL, {}, lambda values: values, residual=value)


def emit(builder: GraphBuilder, draft: Draft) -> Value:
    """Write a draft's operations, once, and return its result."""
    if draft.value is None:
        residual = any(isinstance(s, Step) and s.residual for s in draft.steps)
        if draft.kind is Kind.BCONV and draft.bits_only and not residual:
            draft.value = _emit_bits(builder, draft)
        else:
            draft.value = _emit_floats(builder, draft)
    return draft.value


def _emit_bits(builder: GraphBuilder, draft: Draft) -> Value:
    """Write a binary convolution with thresholds, and its poolings of bits.

    The steps are evaluated by torch on every sum that the convolution can yield, so
    the packed bit is the simulated bit, rounding included. Pooling of signs is an OR.
    Where it stands before a falling function, such as a BN with negative gamma, the
    largest value gives the smallest result: an AND.
    """
    channels = draft.shape[0]
    fields = {key: value for key, value in draft.fields.items() if key != "fan_in"}
    fan_in = draft.fields["fan_in"]
    sums = torch.from_numpy(reachable_sums(fan_in))
    values = sums.expand(1, channels, 1, -1).contiguous()
    pools: list[tuple[Pool, npt.NDArray[np.bool_], bool]] = []
    for index, step in enumerate(draft.steps):
        if isinstance(step, Pool):
            falling = (values[0, :, 0, -1] < values[0, :, 0, 0]).numpy()
            behind = draft.steps[index + 1 :]
            keeps_sign = all(isinstance(s, Pool) or s is CLAMP for s in behind)
            pools.append((step, falling, keeps_sign))
        else:
            values = step.apply(values)
    positive = (values >= 0)[0, :, 0].numpy()
    thresholds, flips = fold_thresholds(positive, fan_in)
    value = builder.add(
        Kind.BCONV,
        channels,
        draft.source,
        thresholds=thresholds,
        flips=flips,
        **fields,
    )
    for pool, falling, keeps_sign in pools:
        # The whole falls and the part before the pooling does not, or the reverse:
        # then the part behind it falls.
        mask = None if keeps_sign else flips ^ falling
        value = builder.add(
            Kind.BITPOOL,
            channels,
            value,
            kernel=pool.kernel,
            stride=pool.stride,
            mask=mask,
        )
    return value


@dataclass
class _Open:
    """An operation that may still take steps."""

    kind: Kind | None
    source: Value | None
    fields: dict[str, Any]
    rank: Rank = Rank.START
    residual: Value | None = None


_ONE_PIXEL = Pool((1, 1), 1)


def _emit_floats(builder: GraphBuilder, draft: Draft) -> Value:
    channels = draft.shape[0]
    fields = {key: value for key, value in draft.fields.items() if key != "fan_in"}
    current = _Open(draft.kind, draft.source, fields)

    def close() -> Value:
        if current.kind is None:
            return present(current.source)
        return builder.add(
            current.kind,
            channels,
            current.source,
            residual=current.residual,
            **current.fields,
        )

    def pooled(pool: Pool) -> _Open:
        window = {"kernel": pool.kernel, "stride": pool.stride}
        return _Open(Kind.MAXPOOL, close(), window)

    last = len(draft.steps) - 1
    for index, step in enumerate(draft.steps):
        if isinstance(step, Pool):
            current = pooled(step)
            continue
        if step.rank is Rank.BIAS and (
            current.kind is not Kind.BCONV or current.rank >= Rank.BIAS
        ):
            step = _as_affine(step)
        closed = current.kind is None or current.kind in WITHOUT_EPILOGUE
        if closed or step.rank <= current.rank:
            if step is CLAMP and (
                current.rank is Rank.CLAMP or (index == last and draft.bits_only)
            ):
                continue  # it changes neither a clamped value nor a sign
            current = pooled(_ONE_PIXEL)
        current.fields |= step.fields
        current.rank, current.residual = step.rank, step.residual or current.residual
    return close()


def _as_affine(step: Step) -> Step:
    """Return v + shift as fma(v, 1, shift), which rounds alike."""
    shift = step.fields["bias"]
    fields = {"gain": np.ones_like(shift), "offset": shift}
    return Step(Rank.AFFINE, fields, step.apply)

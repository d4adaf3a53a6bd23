"""What a method's messages look like: known before the first one is sent."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from fedbnn_core.arrays import Array, Arrays

__all__ = ["PerClientBytes", "Template", "shape_only", "shapes_of"]


@dataclass(frozen=True)
class PerClientBytes:
    """What one client receives and sends in a round."""

    up: int
    down: int


@dataclass(frozen=True)
class Template:
    """The first broadcast of a run, and names, shapes and types of every reply."""

    broadcast: Arrays
    """The state sent out in the first round; nobody may write to it."""
    reply: Arrays
    """A reply's arrays as `shape_only`."""
    rotations: Arrays = field(default_factory=dict)
    """A reply's R1 and R2 as `shape_only`; empty for methods without rotations."""
    nominal_bytes: PerClientBytes = PerClientBytes(0, 0)
    """The traffic as papers count it: trained numbers, 4 bytes each.

    Running statistics, counters and the arrays' headers travel too; they are part of
    the actual bytes only.
    """

    def __post_init__(self) -> None:
        for array in self.broadcast.values():
            array.setflags(write=False)


def shape_only(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return a read-only array that has a shape, a type and no memory of its own."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def shapes_of(arrays: Mapping[str, Array]) -> Arrays:
    """Return `shape_only` arrays like the given ones."""
    return {name: shape_only(a.shape, a.dtype) for name, a in arrays.items()}

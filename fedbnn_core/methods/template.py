"""What a method's messages look like: known before the first one is sent."""

from dataclasses import dataclass, field

from fedbnn_core.arrays import Arrays

__all__ = ["PerClientBytes", "Template"]


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
    """A reply's arrays as `shape_only`, decoded if they travel in few bits."""
    rotations: Arrays = field(default_factory=dict)
    """A reply's R1 and R2 as `shape_only`; empty where none are sent."""
    nominal_bytes: PerClientBytes = PerClientBytes(0, 0)
    """The traffic as papers count it: trained numbers, 4 bytes each, or a coding's own.

    Running statistics, counters and the arrays' headers travel too; they are part of
    the actual bytes only.
    """
    parameters: int = 0
    """Trained numbers of the network."""

    def __post_init__(self) -> None:
        for array in self.broadcast.values():
            array.setflags(write=False)

"""The one interface of all codings, and where in a run a message belongs."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from fedbnn_core.arrays import Arrays

__all__ = ["SERVER", "Codec", "Stamp"]

SERVER = -1
"""The sender of an order; clients are numbered from 0."""


@dataclass(frozen=True)
class Stamp:
    """Where in a run a message belongs; it fixes every random number in it."""

    seed: int
    """Of this one message, in [0, 2**63)."""
    round_index: int
    """The round, from 0."""
    sender: int
    """A client's partition id, or `SERVER`."""


class Codec(ABC):
    """Turns the arrays that a sender means into those that travel, and back."""

    sent: Arrays
    """Names, shapes and types of what travels, known before anything is sent."""

    @property
    def size_bytes(self) -> int:
        """Return the bytes of what travels, without the transport's own headers."""
        return sum(array.nbytes for array in self.sent.values())

    @abstractmethod
    def encode(self, arrays: Arrays, stamp: Stamp) -> Arrays:
        """Return what travels, in the form of `sent`; the sender calls it."""

    @abstractmethod
    def decode(self, sent: Arrays, stamp: Stamp) -> Arrays:
        """Return what the sender meant, as near as the coding keeps it.

        Raises
        ------
        WireError
            The content is not one that `encode` can have made for this stamp.
        """

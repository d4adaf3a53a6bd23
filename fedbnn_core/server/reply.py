"""One client's reply to a round, from its validation to the aggregation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedbnn_core.aggregation.robust import clip_array
from fedbnn_core.arrays import Array, Arrays

__all__ = ["Reply", "clip_replies"]


@dataclass(frozen=True)
class Reply:
    """A reply that counts; its arrays are in memory or mapped from a file."""

    partition_id: int
    """The client."""
    num_examples: int
    """Samples it trained on."""
    arrays: Arrays
    """The method's arrays and the rotations together, by name, as they came."""
    update_norm: float = 0.0
    """L2 norm of its update."""
    loss: float | None = None
    """Training loss, if it was sent."""
    layer_metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """One number for each binary layer, by name."""
    clip_factor: float = 1.0
    """By what its update is multiplied when it is aggregated, in (0, 1]."""
    clip_from: Mapping[str, Array] = field(default_factory=dict)
    """The broadcast, from which a clipped update is measured."""

    def array(self, name: str) -> Array:
        """Return one array as it is aggregated; clipped arrays are made here.

        So no second copy of a whole reply is ever held. Rotations and integers are no
        updates, and stay.
        """
        array = self.arrays[name]
        before = self.clip_from.get(name)
        if before is None or array.dtype.kind != "f":
            return array
        return clip_array(array, before, self.clip_factor)

    @property
    def size_bytes(self) -> int:
        """Return the size of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())


def clip_replies(
    replies: Sequence[Reply], broadcast: Mapping[str, Array], *, max_norm: float
) -> list[Reply]:
    """Clip the updates that are longer than ``max_norm``.

    Parameters
    ----------
    replies : in partition order.
    broadcast : the state that the clients started from.
    max_norm : 0 takes the median of the updates' norms.
    """
    norms = [reply.update_norm for reply in replies]
    limit = max_norm if max_norm > 0 else float(np.median(norms))
    return [
        replace(reply, clip_factor=limit / reply.update_norm, clip_from=broadcast)
        if reply.update_norm > limit
        else reply
        for reply in replies
    ]

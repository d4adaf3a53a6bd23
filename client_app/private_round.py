"""Make an update differentially private on the device, with Flower's own mod.

``LocalDpMod`` clips and noises the one record of arrays in a reply. It fails on
integers, and arrays without dimensions it passes on as they are, neither clipped nor
noised. So it is shown a reply of nothing but float vectors.
"""

import os

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod

from fedbnn_core.arrays import Arrays
from fedbnn_core.config import RunConfig
from fedbnn_core.errors import RunError
from fedbnn_core.training.privacy import mechanism_epsilon, publishable

__all__ = ["private_arrays"]

_SHORTEST_UPDATE = 1e-12
"""The square of a change much smaller than this is zero in float32."""


def private_arrays(
    trained: Arrays,
    broadcast: Arrays,
    config: RunConfig,
    *,
    message: Message,
    context: Context,
) -> Arrays:
    """Return the trained arrays with a clipped and noisy update.

    Parameters
    ----------
    trained, broadcast : the same names; the update is their difference.
    config : clip norm, noise multiplier and delta.
    message, context : of the round, for the mod.
    """
    names = [name for name, array in broadcast.items() if array.dtype.kind == "f"]
    if not _can_be_clipped(trained, broadcast, names):
        trained = _constant_update(broadcast, names)
    order = Message(content=_vectors(broadcast, names), reply_to=message)

    def reply(_: Message, __: Context) -> Message:
        return Message(content=_vectors(trained, names), reply_to=message)

    mod = LocalDpMod(
        clipping_norm=config.privacy_clip_norm,
        sensitivity=config.privacy_clip_norm,
        epsilon=mechanism_epsilon(config),
        delta=config.privacy_delta,
    )
    # The mod draws from numpy's global generator. A seed that others know would let
    # them take the noise off again, so it comes from the operating system.
    np.random.seed(np.frombuffer(os.urandom(64), np.uint32))
    changed = mod(order, context, reply)
    if changed.has_error():
        raise RunError(f"the update cannot be made private: {changed.error.reason}")
    record = changed.content.array_records["arrays"]
    noisy = {
        name: array.numpy().reshape(broadcast[name].shape)
        for name, array in record.items()
    }
    return publishable(noisy, broadcast)


def _can_be_clipped(trained: Arrays, broadcast: Arrays, names: list[str]) -> bool:
    """Tell if the update is finite and has a length.

    The mod passes on NaN and infinities, and divides by a length of zero: both would
    tell about the client, without any noise.
    """
    longest = 0.0
    for name in names:
        with np.errstate(over="ignore", invalid="ignore"):
            update = np.abs(np.subtract(trained[name], broadcast[name]))
        if not np.isfinite(update).all():
            return False
        longest = max(longest, float(update.max(initial=0.0)))
    return longest >= _SHORTEST_UPDATE


def _constant_update(broadcast: Arrays, names: list[str]) -> Arrays:
    """Return the broadcast with one number changed a little: the rest is noise."""
    changed = broadcast[names[0]].copy()
    first = changed.reshape(-1)[:1]
    first += np.maximum(np.abs(first), 1) * first.dtype.type(1e-6)
    return broadcast | {names[0]: changed}


def _vectors(arrays: Arrays, names: list[str]) -> RecordDict:
    record = ArrayRecord({name: Array(arrays[name].reshape(-1)) for name in names})
    return RecordDict({"arrays": record})

"""FedBAT's coding: the signs of an update and one step size per layer.

All other arrays travel as they are, each under its own name.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedbnn_core.arrays import Array, Arrays, shape_only, shapes_of
from fedbnn_core.errors import WireError
from fedbnn_core.wire.codec import Codec, Stamp

__all__ = ["STEP_SIZES", "SignCodec", "pack_signs", "unpack_update"]

STEP_SIZES = "step-sizes"
"""Name of the layers' alphas, float32 (layers,), in the order of the state."""


class SignCodec(Codec):
    """Codes updates of +-alpha.

    Parameters
    ----------
    state : arrays of the network's names, shapes and types.
    weights : names of those that are sent as an update of +-alpha, in order.
    """

    def __init__(self, state: Mapping[str, Array], weights: Sequence[str]) -> None:
        self._shapes = {name: state[name].shape for name in weights}
        self._positions = {name: index for index, name in enumerate(weights)}
        self._others = [name for name in state if name not in self._shapes]
        sent = shapes_of({name: state[name] for name in self._others})
        for name, shape in self._shapes.items():
            size = (math.prod(shape) + 7) // 8
            sent[_signs_key(name)] = shape_only((size,), np.uint8)
        sent[STEP_SIZES] = shape_only((len(self._shapes),), np.float32)
        self.sent = sent

    @property
    def positions(self) -> Mapping[str, int]:
        """The place of each weight's alpha in `STEP_SIZES`."""
        return self._positions

    def encode(self, arrays: Arrays, stamp: Stamp | None = None) -> Arrays:
        """Return signs and alphas of the updates, and everything else as it is.

        Parameters
        ----------
        arrays : the state; a weight's array is its update, +-alpha everywhere.
        stamp : nothing is drawn, so it is not needed.
        """
        sent = {name: arrays[name] for name in self._others}
        alphas = []
        for name in self._shapes:
            sent[_signs_key(name)] = pack_signs(arrays[name] > 0)
            alphas.append(np.abs(arrays[name].reshape(-1)[0]))
        return sent | {STEP_SIZES: np.array(alphas, np.float32)}

    def decode(self, sent: Arrays, stamp: Stamp | None = None) -> Arrays:
        """Return the state with every weight's update in its place."""
        self.check(sent)
        alphas = sent[STEP_SIZES]
        updates = {
            name: self.update(name, sent[_signs_key(name)], alphas)
            for name in self._shapes
        }
        return {name: sent[name] for name in self._others} | updates

    def signs(self, name: str) -> str:
        """Return the name under which a weight's signs travel."""
        return _signs_key(name)

    def update(self, name: str, signs: Array, alphas: Array) -> Array:
        """Return one weight's update from its signs and all alphas."""
        return unpack_update(signs, alphas[self._positions[name]], self._shapes[name])

    def check(self, sent: Arrays) -> None:
        """Raise `WireError` if bits are set beyond the last sign of an array."""
        for name, shape in self._shapes.items():
            unused = -math.prod(shape) % 8
            packed = sent[_signs_key(name)]
            if packed.size and int(packed[-1]) & ((1 << unused) - 1):
                raise WireError(f"{_signs_key(name)!r}: its padding bits are not zero")


_SUFFIX = ".signs"


def _signs_key(weight_name: str) -> str:
    return f"{weight_name}{_SUFFIX}"


def pack_signs(positive: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return signs as bits in row-major order, 8 to a byte, the first one highest."""
    return np.packbits(positive, axis=None)


def unpack_update(
    packed: NDArray[np.uint8], alpha: float | np.float32, shape: tuple[int, ...]
) -> NDArray[np.float32]:
    """Return alpha * (2b - 1), float32 in the weight's shape."""
    bits = np.unpackbits(packed, count=math.prod(shape)).reshape(shape)
    return np.where(bits, np.float32(alpha), -np.float32(alpha))

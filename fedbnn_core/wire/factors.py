"""FedMUD's coding: a layer's update as the trained factors of its Kronecker blocks.

All other arrays travel as they are, each under its own name.
"""

from collections.abc import Mapping

import numpy as np

from fedbnn_core.arrays import Array, Arrays, shape_only, shapes_of
from fedbnn_core.training.kronecker_update import Blocks
from fedbnn_core.wire.codec import Codec, Stamp

__all__ = ["FactorCodec", "factor_keys"]


class FactorCodec(Codec):
    """Codes updates that stand as their two factors A and B.

    Parameters
    ----------
    state : arrays of the network's names, shapes and types.
    blocks : how the update of a layer is built, by the layer's name.
    """

    def __init__(self, state: Mapping[str, Array], blocks: Mapping[str, Blocks]):
        self._layers = {f"{layer}.weight": factor_keys(layer) for layer in blocks}
        self.sent = shapes_of({n: a for n, a in state.items() if n not in self._layers})
        for layer, layer_blocks in blocks.items():
            for key in factor_keys(layer):
                self.sent[key] = shape_only(layer_blocks.factor_shape, np.float32)

    def encode(self, arrays: Arrays, stamp: Stamp | None = None) -> Arrays:
        """Give A and B names of their own.

        Parameters
        ----------
        arrays : the state; in place of a decomposed weight A and B, (2, r, s, s).
        stamp : nothing is drawn, so it is not needed.
        """
        sent = {n: array for n, array in arrays.items() if n not in self._layers}
        for name, keys in self._layers.items():
            sent |= zip(keys, arrays[name], strict=True)
        return sent

    def decode(self, sent: Arrays, stamp: Stamp | None = None) -> Arrays:
        """Return the state with A and B in place of the decomposed weights."""
        factors = {key for keys in self._layers.values() for key in keys}
        arrays = {n: array for n, array in sent.items() if n not in factors}
        for name, keys in self._layers.items():
            arrays[name] = np.stack([sent[key] for key in keys])
        return arrays


def factor_keys(layer: str) -> tuple[str, str]:
    """Return the names under which A and B of a layer travel."""
    return f"{layer}.factor-a", f"{layer}.factor-b"

"""Differential privacy on the device: the noise of an update, and what may be sent.

A client of a private run clips its update to an L2 norm C and adds Gaussian noise of
standard deviation z*C before anything leaves the device.
"""

import math

import numpy as np

from fedbnn_core.arrays import Arrays
from fedbnn_core.config import RunConfig

__all__ = ["mechanism_epsilon", "publishable"]

_SMALLEST_VARIANCE = 1e-3


def mechanism_epsilon(config: RunConfig) -> float:
    """Return the parameter that makes Flower's LocalDpMod add noise of z*C.

    The mod's deviation is C sqrt(2 ln(1.25 / delta)) / epsilon. This epsilon is a
    setting, not the privacy of the run: that is told by `ClientAccountant` on the
    server.
    """
    factor = math.sqrt(2.0 * math.log(1.25 / config.privacy_delta))
    return factor / config.privacy_noise_multiplier


def publishable(noisy: Arrays, broadcast: Arrays) -> Arrays:
    """Return a reply's arrays from its noisy floats and what is public anyway.

    Integer arrays (numbers of batches) would tell how much data the client has, so
    the server's own are sent back. Noise can make a variance negative; it is raised.
    Neither looks at the client's data: nothing is revealed beyond ``noisy``.
    """
    arrays = {name: noisy.get(name, array) for name, array in broadcast.items()}
    for name, array in arrays.items():
        if name.endswith("running_var"):
            arrays[name] = np.maximum(array, array.dtype.type(_SMALLEST_VARIANCE))
    return arrays

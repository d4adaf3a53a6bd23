"""What the tests of a binary layer share: seeded layers and numbers, plain formulas."""

import numpy as np
import torch

from fedbnn_core.binary.layer import RotatedBinaryConv2d


def layer_of(*args: int, seed: int = 0, **kwargs: object) -> RotatedBinaryConv2d:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return RotatedBinaryConv2d(*args, **kwargs)  # type: ignore[arg-type]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plus_minus(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, 1, -1)


def standardized(w: np.ndarray) -> np.ndarray:
    """Filters of mean 0 and deviation 1; those of one weight stay as they are."""
    if w[0].size == 1:
        return w
    flat = w.reshape(len(w), -1)
    centred = flat - flat.mean(axis=1, keepdims=True)
    deviation = flat.std(axis=1, ddof=1, keepdims=True) + 1e-5
    return (centred / deviation).reshape(w.shape)

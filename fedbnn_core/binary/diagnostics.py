"""What is logged of one binary layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbnn_core.binary.mixing import standardize_filters
from fedbnn_core.binary.rotation import Rotation, angular_cosine, rotate

__all__ = ["LayerDiagnostics"]


@dataclass(frozen=True)
class LayerDiagnostics:
    """A layer's scalars, and the angular bias cos(phi) of rot(std(w))."""

    alpha: float
    beta: float
    lam: float
    cos_phi: float

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        weight: Tensor,
        rotation: Rotation,
        *,
        alpha: Tensor,
        beta: Tensor,
        lam: Tensor,
    ) -> "LayerDiagnostics":
        """Read the scalars, and compute cos(phi)."""
        rotated = rotate(standardize_filters(weight), rotation)
        return cls(float(alpha), float(beta), float(lam), angular_cosine(rotated))

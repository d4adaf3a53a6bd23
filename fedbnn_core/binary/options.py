"""How the binary convolutions of a network are trained."""

import math
from dataclasses import dataclass

from torch import Tensor, nn

from fedbnn_core.binary import native_steps
from fedbnn_core.choices import ACTIVATIONS, GRADIENT_BITS, ROTATION_STARTS
from fedbnn_core.errors import ConfigError

__all__ = ["BinaryOptions"]


@dataclass(frozen=True)
class BinaryOptions:
    """How binary convolutions are trained."""

    activation: str = "static"
    """"static": sign(BN(x)), folds into integer thresholds. "per-sample": RBNN's
    standardization of each sample before the sign (not exportable)."""
    rotation_start: str = "identity"
    """R at the start of every round: "identity", a seeded common "haar" draw, or
    "warm", learnt on the broadcast weights."""
    rotation_iterations: int = 3
    """Bi-rotation iterations at the start of every local epoch; 0 keeps the start."""
    server_alignment: bool = True
    """False is the ablation without server memory: beta = 1 and lambda = 1."""
    gradient_bits: int = 32
    """32: float gradients. 8, 6 or 4: the gradient of a convolution's output is rounded
    to so many bits, and the layer trains in integers. 0: 8 on a CPU that has the
    compiled kernels, else 32."""
    initial_std: float = 0.0
    """Initial weights are drawn from N(0, initial_std); 0: torch's default for
    convolutions. They are standardized, so that this sets how far a step turns them."""
    omega_start: float = 0.0
    """omega before training; the client's share lambda is sigmoid(omega)."""
    seed: int = 0
    """Fixes the Haar start."""

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ConfigError(
                f"activation must be one of {ACTIVATIONS}, got {self.activation!r}"
            )
        if self.rotation_start not in ROTATION_STARTS:
            raise ConfigError(
                f"rotation_start must be one of {ROTATION_STARTS}, "
                f"got {self.rotation_start!r}"
            )
        if self.gradient_bits not in GRADIENT_BITS:
            raise ConfigError(
                f"gradient_bits must be one of {GRADIENT_BITS}, "
                f"got {self.gradient_bits!r}"
            )

    def bits_for(self, weight: Tensor) -> int:
        """Return the bits of the gradients of a layer with these weights."""
        return self.gradient_bits or (8 if native_steps.takes(weight) else 32)

    def draw(self, weight: Tensor) -> None:
        """Draw a layer's initial weights in place, from torch's random numbers."""
        if self.initial_std > 0:
            nn.init.normal_(weight, std=self.initial_std)
        else:
            nn.init.kaiming_uniform_(weight, a=math.sqrt(5))

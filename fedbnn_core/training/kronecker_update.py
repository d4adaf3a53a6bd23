"""FedMUD's update of a layer: blocks of Kronecker products with half of it frozen.

D = A~ (x) B + A (x) B~ in r blocks of factors s x s. A~ and B~
are random, frozen and grown from a seed; A and B are trained and start at zero. D is
linear in them, so the mean of the factors is the mean of the updates.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedbnn_core.seeding import derive_seed
from fedbnn_core.training.weight_update import WeightUpdate, weight_layers

__all__ = [
    "Blocks",
    "KroneckerUpdate",
    "blocks_for",
    "choose_blocks",
    "frozen_factors",
    "kronecker_update",
]

_RATIO_STEP = _RATIO_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Blocks:
    """How one layer's update is built."""

    count: int
    """r, the number of blocks."""
    size: int
    """s, each factor is s x s and a block s^2 x s^2."""

    @property
    def trained(self) -> int:
        """Return the numbers in A and B together, 2 r s^2."""
        return 2 * self.count * self.size**2

    @property
    def factor_shape(self) -> tuple[int, int, int]:
        """Return the shape of A, and of B."""
        return self.count, self.size, self.size


def blocks_for(num_weights: int, ratio: float) -> Blocks:
    """Return r = ceil(q^2 N / 4) and s = ceil((N / r)^(1/4)) for a layer of N weights.

    The blocks hold r s^4 >= N numbers, the trained factors about q N.
    """
    count = max(1, math.ceil(ratio**2 * num_weights / 4))
    size = max(1, round((num_weights / count) ** 0.25) - 1)
    # In integers: the fourth root of a fourth power may come out a hair above it.
    while count * size**4 < num_weights:
        size += 1
    return Blocks(count, size)


def choose_blocks(model: nn.Module, target: float) -> dict[str, Blocks]:
    """Return the blocks of every layer but the first and the last.

    The per-layer ratio q starts at ``target`` and falls in steps of 0.001 until the
    trained numbers of the whole network (factors, first and last layer, norms, biases)
    are at most target + 0.001 of its parameters, or q would not be positive.
    """
    sizes = {
        name: layer.weight.numel()
        for name, layer in list(weight_layers(model).items())[1:-1]
    }
    total = sum(parameter.numel() for parameter in model.parameters())
    in_full = total - sum(sizes.values())
    ratio = target
    while True:
        blocks = {name: blocks_for(size, ratio) for name, size in sizes.items()}
        trained = in_full + sum(b.trained for b in blocks.values())
        if trained / total - target <= _RATIO_TOLERANCE or ratio - _RATIO_STEP <= 0:
            return blocks
        ratio -= _RATIO_STEP


def kronecker_update(
    trained: tuple[Tensor, Tensor], frozen: tuple[Tensor, Tensor], shape: torch.Size
) -> Tensor:
    """Return D = A~ (x) B + A (x) B~: blocks row by row, cut to the weight's size.

    Parameters
    ----------
    trained : A and B, each (r, s, s).
    frozen : A~ and B~, each (r, s, s).
    shape : the weight's shape; filled row-major.
    """
    (a, b), (a_frozen, b_frozen) = trained, frozen
    count, size, _ = a.shape
    # Both products at once, as a matrix product over the two terms of the sum:
    # (r, ij, term) @ (r, term, kl), then entry (ik, jl) of block A (x) B.
    left = torch.stack((a_frozen, a), dim=-1).view(count, size * size, 2)
    right = torch.stack((b, b_frozen), dim=1).view(count, 2, size * size)
    products = torch.bmm(left, right).view(count, size, size, size, size)
    return products.transpose(2, 3).reshape(-1)[: shape.numel()].view(shape)


def frozen_factors(
    blocks: Mapping[str, Blocks], seed: int, magnitude: float
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return A~ and B~ of every layer, uniform in (-magnitude, magnitude).

    They depend on the seed, the layer's position and the sizes only, and are drawn on
    the CPU, so that server and clients grow the same ones.
    """
    factors = {}
    for position, (name, layer) in enumerate(blocks.items()):
        pair = []
        for term in ("left", "right"):
            generator = torch.Generator().manual_seed(derive_seed(seed, position, term))
            draw = torch.empty(layer.factor_shape).uniform_(
                -magnitude, magnitude, generator=generator
            )
            pair.append(draw)
        factors[name] = (pair[0], pair[1])
    return factors


class KroneckerUpdate(WeightUpdate):
    """u = A~ (x) B + A (x) B~ with trainable ``a`` and ``b``."""

    a_frozen: Tensor
    b_frozen: Tensor

    def __init__(self, weight: Tensor, blocks: Blocks) -> None:
        super().__init__()
        zeros = torch.zeros(blocks.factor_shape, device=weight.device)
        self.blocks, self.shape = blocks, weight.shape
        self.a, self.b = nn.Parameter(zeros.clone()), nn.Parameter(zeros.clone())
        self.register_buffer("a_frozen", zeros.clone())
        self.register_buffer("b_frozen", zeros.clone())

    @torch.no_grad()
    def begin_round(
        self,
        frozen: tuple[Tensor, Tensor],
        trained: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Take the round's frozen factors; without trained ones u starts at zero."""
        self.a_frozen.copy_(frozen[0])
        self.b_frozen.copy_(frozen[1])
        if trained is None:
            self.a.zero_()
            self.b.zero_()
        else:
            self.a.copy_(trained[0])
            self.b.copy_(trained[1])

    def update(self) -> Tensor:
        """Return D."""
        return kronecker_update(
            (self.a, self.b), (self.a_frozen, self.b_frozen), self.shape
        )

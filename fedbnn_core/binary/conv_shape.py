"""The sizes of one convolution of one batch."""

from enum import Enum
from typing import NamedTuple

from torch import Tensor

__all__ = ["ConvShape", "Pool"]


class Pool(Enum):
    """Where a 2 x 2 max-pool stands beside the batch norm."""

    NONE = 0
    AFTER = 1
    BEFORE = 2


class ConvShape(NamedTuple):
    """A batch and a square convolution over it, padded by taps of +1."""

    batch: int
    height: int
    width: int
    in_channels: int
    out_channels: int
    kernel: int
    stride: int
    padding: int
    groups: int

    @classmethod
    def of(
        cls, x: Tensor, weight: Tensor, *, stride: int, padding: int, groups: int
    ) -> "ConvShape":
        """Return the shape for inputs (n, c, h, w) and weights (c_o, c, k, k)."""
        n, c, h, w = x.shape
        c_o, _, k, _ = weight.shape
        return cls(n, h, w, c, c_o, k, stride, padding, groups)

    @property
    def fan_in(self) -> int:
        """Return the number of products in one output."""
        return self.in_channels // self.groups * self.kernel**2

    @property
    def output(self) -> tuple[int, int]:
        """Return the output's height and width."""
        return (
            (self.height + 2 * self.padding - self.kernel) // self.stride + 1,
            (self.width + 2 * self.padding - self.kernel) // self.stride + 1,
        )

"""Pieces that the networks share: convolutions, layer norm, initial weights.

A sign must not depend on the order in which a machine sums. Where a binary network
takes the sign of a float sum (behind a layer norm, behind its stem: `binary.stem`),
evaluation sums in float64 and rounds once, as the packed runtime does; training keeps
float32.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbnn_core.binary.devices import widest
from fedbnn_core.binary.layer import RotatedBinaryConv2d
from fedbnn_core.binary.memory_layout import subsample
from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.binary.stem import StemConv2d

__all__ = [
    "ChannelLayerNorm",
    "StridedPointwiseConv2d",
    "convolution",
    "normal_init",
    "stem",
]


_SOUND_CHANNELS = 8


def convolution(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    binary: bool,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
    bias: bool = False,
    clamp: bool = True,
    options: BinaryOptions | None = None,
) -> nn.Module:
    """Return a binary convolution, or its float twin, to stand before a batch norm.

    The float twin pads with zeros.
    """
    if binary:
        return RotatedBinaryConv2d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=padding,
            groups=groups,
            bias=bias,
            clamp=clamp,
            norm_follows=True,
            options=options,
        )
    strided_pointwise = kernel_size == 1 and padding == 0 and stride > 1
    # With more channels torch's own kernel is sound, and it may round otherwise.
    narrow = min(in_channels, out_channels) < _SOUND_CHANNELS
    kind = StridedPointwiseConv2d if strided_pointwise and narrow else nn.Conv2d
    return kind(
        in_channels,
        out_channels,
        kernel_size,
        stride=stride,
        padding=padding,
        groups=groups,
        bias=bias,
    )


def stem(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    binary: bool,
    padding: int = 0,
    bias: bool = True,
    options: BinaryOptions | None = None,
) -> nn.Conv2d:
    """Return the float convolution in front of a network, or of its float twin."""
    shape = (in_channels, out_channels, kernel_size)
    if binary:
        return StemConv2d(*shape, padding=padding, bias=bias, options=options)
    return nn.Conv2d(*shape, padding=padding, bias=bias)


def normal_init(model: nn.Module, std: float = 0.01) -> None:
    """Draw every float conv and linear weight from Normal(0, std), biases zero.

    Binary convolutions keep torch's default: their weights are standardized, so the
    initial scale only sets the effective learning rate.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class StridedPointwiseConv2d(nn.Conv2d):
    """A 1x1 convolution of every stride-th pixel.

    It takes these pixels out first: left to itself, oneDNN's AVX2 kernel writes beyond
    its buffers where there are fewer than eight channels (torch 2.13, found with
    glibc's checks of the heap for 3 and 7 channels, not for 8 to 20).
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of the pixels that count."""
        pixels = subsample(input, self.stride[0])
        return F.conv2d(pixels, self.weight, self.bias, groups=self.groups)


class ChannelLayerNorm(nn.LayerNorm):
    """Layer norm over the channels of each position of an (n, c, h, w) tensor."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize over dimension 1; in evaluation on a CPU summed in float64."""
        if self.training:
            return super().forward(input.movedim(1, -1)).movedim(-1, 1)
        x = input.to(widest(input))
        centred = x - x.mean(dim=1, keepdim=True)
        variance = centred.square().mean(dim=1, keepdim=True)
        epsilon = torch.tensor(self.eps, dtype=input.dtype).item()
        gamma, beta = (part[:, None, None] for part in (self.weight, self.bias))
        inverse = 1 / (variance + epsilon).sqrt()
        return (centred * inverse * gamma + beta).to(input.dtype)

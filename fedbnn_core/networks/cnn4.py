"""CNN4: four 3x3 convolutions with 32, 64, 128 and 256 channels."""

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from fedbnn_core.binary.block import Pool, conv_norm
from fedbnn_core.binary.memory_layout import hardtanh
from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.errors import ConfigError
from fedbnn_core.networks.blocks import convolution, normal_init, stem

__all__ = ["CNN4"]

CHANNELS = (32, 64, 128, 256)


class CNN4(nn.Module):
    """4 x [conv3x3 - BN - non-linearity - maxpool 2x2], then a linear head, no bias.

    The binary net's non-linearity is hardtanh and all four convolutions are binary:
    the first one sees the sign of the normalized image. hardtanh is monotone, so it
    is applied behind the pooling, to a quarter of the values. The head is float.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        binary: bool = True,
        pool_before_bn: bool = False,
        float_first: bool = False,
        options: BinaryOptions | None = None,
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        if min(height, width) < 16:
            raise ConfigError(
                f"cnn4 halves its input four times and needs at least 16x16 pixels, "
                f"got {height}x{width}; enlarge the images or choose a resnet"
            )
        self.binary = binary
        self.pool_before_bn = pool_before_bn
        self.convs = nn.ModuleList()
        self.norms = nn.ModuleList()
        for index, out_channels in enumerate(CHANNELS):
            if binary and float_first and index == 0:
                conv: nn.Module = stem(
                    channels,
                    out_channels,
                    3,
                    binary=True,
                    padding=1,
                    bias=False,
                    options=options,
                )
            else:
                conv = convolution(
                    channels,
                    out_channels,
                    3,
                    padding=1,
                    binary=binary,
                    clamp=index > 0,
                    options=options,
                )
            self.convs.append(conv)
            self.norms.append(nn.BatchNorm2d(out_channels))
            channels, height, width = out_channels, height // 2, width // 2
        self.head = nn.Linear(channels * height * width, num_classes, bias=False)
        normal_init(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes) of normalized images (n, c, h, w)."""
        pool = Pool.BEFORE if self.pool_before_bn else Pool.AFTER
        for conv, norm in zip(self.convs, self.norms, strict=True):
            if self.binary:
                x = conv_norm(conv, cast(nn.BatchNorm2d, norm), x, pool=pool)
            elif self.pool_before_bn:
                x = F.relu(norm(F.max_pool2d(conv(x), 2)))
            else:
                x = F.max_pool2d(F.relu(norm(conv(x)), inplace=True), 2)
        if self.binary:
            x = hardtanh(x)
        return cast(Tensor, self.head(x.flatten(1)))

"""ResNet10 and ResNet18, CIFAR style: 3x3 stem, no initial pooling."""

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from fedbnn_core.binary.block import conv_norm, residual
from fedbnn_core.binary.memory_layout import pixel_mean
from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.networks.blocks import convolution, normal_init, stem

__all__ = ["BasicBlock", "ResNet"]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut.

    Binary: hardtanh(BN(bconv(hardtanh(BN(bconv(x))))) + shortcut(x)), where the
    shortcut is the identity or a binary 1x1 convolution with BN. Residuals stay float.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        stride: int,
        binary: bool,
        clamp: bool,
        options: BinaryOptions | None,
    ) -> None:
        super().__init__()
        self.binary = binary

        def conv(channels: int, size: int, stride: int, clamp: bool) -> nn.Module:
            return convolution(
                channels,
                out_channels,
                size,
                stride=stride,
                padding=size // 2,
                binary=binary,
                clamp=clamp,
                options=options,
            )

        self.conv1 = conv(in_channels, 3, stride, clamp)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv(out_channels, 3, 1, True)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                conv(in_channels, 1, stride, clamp), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output; binary convs clamp and sign their own input."""
        h = conv_norm(self.conv1, self.norm1, x)
        if not self.binary:
            h = F.relu(h, inplace=True)
        h, x = conv_norm(self.conv2, self.norm2, h), self._shortcut(x)
        return (
            residual(self.conv2, h, x) if self.binary else F.relu(h + x, inplace=True)
        )

    def _shortcut(self, x: Tensor) -> Tensor:
        if isinstance(self.shortcut, nn.Identity):
            return x
        conv, norm = self.shortcut.children()
        return conv_norm(conv, cast(nn.BatchNorm2d, norm), x)


class ResNet(nn.Module):
    """Float stem, four stages of basic blocks, average pool, BN1d, linear head.

    No activation follows the binary net's stem, so its first block receives values
    beyond [-1, 1] and does not clamp their gradient.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        blocks_per_stage: int,
        width: int = 64,
        binary: bool = True,
        options: BinaryOptions | None = None,
    ) -> None:
        super().__init__()
        self.binary = binary
        self.stem = stem(
            input_shape[0],
            width,
            3,
            binary=binary,
            padding=1,
            bias=False,
            options=options,
        )
        self.stem_norm = nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        channels = width
        for stage in range(4):
            out_channels = width * 2**stage
            for index in range(blocks_per_stage):
                blocks.append(
                    BasicBlock(
                        channels,
                        out_channels,
                        stride=2 if stage > 0 and index == 0 else 1,
                        binary=binary,
                        clamp=bool(blocks),
                        options=options,
                    )
                )
                channels = out_channels
        self.blocks = nn.Sequential(*blocks)
        self.head_norm = nn.BatchNorm1d(channels)
        self.head = nn.Linear(channels, num_classes)
        normal_init(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes) of normalized images (n, c, h, w)."""
        x = conv_norm(self.stem, self.stem_norm, x)
        if not self.binary:
            x = F.relu(x, inplace=True)
        x = pixel_mean(self.blocks(x))
        return cast(Tensor, self.head(self.head_norm(x)))

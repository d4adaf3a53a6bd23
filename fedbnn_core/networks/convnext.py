"""ConvNeXt-Tiny for small images: a stride-1 stem keeps the input's size."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbnn_core.binary.block import conv_norm
from fedbnn_core.binary.memory_layout import pixel_mean
from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.networks.blocks import ChannelLayerNorm, convolution, stem

__all__ = ["ConvNeXtBlock", "ConvNeXtTiny"]

DEPTHS = (3, 3, 9, 3)
DIMS = (96, 192, 384, 768)
LAYER_SCALE = 1e-6
BINARY_LAYER_SCALE = 0.1


class ConvNeXtBlock(nn.Module):
    """7x7 depthwise - LN - 1x1 (4x wider) - 1x1, scaled and added to the input.

    All three convolutions are binary in the binary net; a BN follows each of them, in
    the float twin too, so that both nets have the same parameters.
    """

    def __init__(
        self, dim: int, *, binary: bool, options: BinaryOptions | None
    ) -> None:
        super().__init__()
        self.binary = binary
        self.depthwise = convolution(
            dim,
            dim,
            7,
            padding=3,
            groups=dim,
            bias=True,
            binary=binary,
            clamp=False,
            options=options,
        )
        self.depthwise_norm = nn.BatchNorm2d(dim)
        self.norm = ChannelLayerNorm(dim, eps=1e-6)
        self.expand = convolution(
            dim, 4 * dim, 1, bias=True, binary=binary, clamp=False, options=options
        )
        self.expand_norm = nn.BatchNorm2d(4 * dim)
        self.reduce = convolution(
            4 * dim, dim, 1, bias=True, binary=binary, options=options
        )
        self.reduce_norm = nn.BatchNorm2d(dim)
        # A float net learns its tiny layer scale quickly; signs would drown in it.
        initial = BINARY_LAYER_SCALE if binary else LAYER_SCALE
        self.layer_scale = nn.Parameter(torch.full((dim,), initial))

    def forward(self, x: Tensor) -> Tensor:
        """Return x + layer_scale * f(x)."""
        h = self.norm(conv_norm(self.depthwise, self.depthwise_norm, x))
        h = conv_norm(self.expand, self.expand_norm, h)
        if not self.binary:
            h = F.gelu(h)
        h = conv_norm(self.reduce, self.reduce_norm, h)
        return x + self.layer_scale[:, None, None] * h


class ConvNeXtTiny(nn.Module):
    """Depths 3, 3, 9, 3 and widths 96 to 768; float stem and head."""

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        binary: bool = True,
        options: BinaryOptions | None = None,
    ) -> None:
        super().__init__()
        self.binary = binary
        self.stem = stem(input_shape[0], DIMS[0], 4, binary=binary, options=options)
        self.stem_norm = ChannelLayerNorm(DIMS[0], eps=1e-6)
        layers: list[nn.Module] = []
        for stage, (depth, dim) in enumerate(zip(DEPTHS, DIMS, strict=True)):
            if stage > 0:
                layers += [
                    ChannelLayerNorm(DIMS[stage - 1], eps=1e-6),
                    convolution(
                        DIMS[stage - 1],
                        dim,
                        2,
                        stride=2,
                        bias=True,
                        binary=binary,
                        clamp=False,
                        options=options,
                    ),
                    nn.BatchNorm2d(dim),
                ]
            layers += [
                ConvNeXtBlock(dim, binary=binary, options=options) for _ in range(depth)
            ]
        self.layers = nn.Sequential(*layers)
        self.head_norm = nn.LayerNorm(DIMS[-1], eps=1e-6)
        self.head = nn.Linear(DIMS[-1], num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes) of normalized images (n, c, h, w)."""
        # A 4x4 kernel at stride 1 keeps the size with one pixel before, two behind.
        x = self.stem_norm(self.stem(F.pad(x, (1, 2, 1, 2))))
        x = pixel_mean(self.layers(x))
        return cast(Tensor, self.head(self.head_norm(x)))

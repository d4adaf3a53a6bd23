"""Pieces that the networks share: a float or binary convolution, initial weights."""

from torch import Tensor, nn

from fedbnn_core.layers import BinaryOptions, RotatedBinaryConv2d

__all__ = ["ChannelLayerNorm", "convolution", "normal_init"]


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
    """Return a rotated binary convolution or its float twin (zero padding)."""
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
            options=options,
        )
    return nn.Conv2d(
        in_channels,
        out_channels,
        kernel_size,
        stride=stride,
        padding=padding,
        groups=groups,
        bias=bias,
    )


def normal_init(model: nn.Module, std: float = 0.01) -> None:
    """Draw every float conv and linear weight from Normal(0, std), biases zero.

    Binary convolutions keep torch's default: their weights are standardised, so the
    initial scale only sets the effective learning rate.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class ChannelLayerNorm(nn.LayerNorm):
    """Layer norm over the channels of each position of an (n, c, h, w) tensor."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise over dimension 1."""
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)

"""Packers of layers.

A packer receives the `Lowering`, the layer and the `Draft` that it reads.
"""

from collections.abc import Callable

import numpy as np
from torch import nn

from fedbnn_core.binary.layer import RotatedBinaryConv2d
from fedbnn_core.binary.stem import StemConv2d
from fedbnn_core.export.folding import (
    BatchNorm,
    Draft,
    array,
    norm_step,
    scale_step,
    shift_step,
)
from fedbnn_core.export.functions import (
    clamp,
    flatten,
    max_pool,
    mean,
    pair,
    per_channel,
    refuse_if,
    window,
)
from fedbnn_core.export.lowering import Lowering
from fedbnn_core.networks.blocks import ChannelLayerNorm, StridedPointwiseConv2d
from fedbnn_core.packed.graph import MAX_FAN_IN, Kind

__all__ = ["LAYERS"]


def _binary_conv(low: Lowering, conv: RotatedBinaryConv2d, x: Draft) -> Draft:
    refuse_if(
        conv.options.activation != "static",
        "it standardizes every sample before its sign, which has no integer "
        'threshold; train with activation = "static"',
    )
    fan_in = conv.weights_per_filter
    refuse_if(
        fan_in > MAX_FAN_IN,
        f"it has {fan_in} weights per filter, the format holds at most {MAX_FAN_IN}",
    )
    depthwise = conv.groups > 1
    refuse_if(
        depthwise and not conv.groups == conv.in_channels == conv.out_channels,
        "groups must be 1, or all of as many channels in as out (depthwise)",
    )
    kernel, stride = window(conv.kernel_size, conv.stride)
    refuse_if(conv.padding >= kernel[0], "padding must be smaller than the kernel")
    positive = conv.binary_weight().detach().permute(0, 2, 3, 1) > 0
    draft = low.draft(
        Kind.BCONV,
        conv.out_channels,
        x,
        kernel=kernel,
        stride=stride,
        padding=(conv.padding,) * 4,
        depthwise=depthwise,
        bits=np.packbits(positive.cpu().numpy(), axis=None, bitorder="little"),
        fan_in=fan_in,
    )
    if conv.scale is not None:
        draft = low.extend(draft, scale_step(array(conv.scale)))
    if conv.bias is not None:
        draft = low.extend(draft, shift_step(array(conv.bias)))
    return draft


def _float_conv(low: Lowering, conv: nn.Conv2d, x: Draft) -> Draft:
    refuse_if(conv.groups != 1, "grouped float convolutions have no packed form")
    refuse_if(pair(conv.dilation) != (1, 1), "dilation has no packed form")
    refuse_if(conv.padding_mode != "zeros", "a float convolution is padded with zeros")
    kernel, stride = window(conv.kernel_size, conv.stride)
    top, left, bottom, right = _conv_padding(conv)
    if around := x.fields.get("zeros around"):
        before, x = around
        top, left = top + before[0], left + before[1]
        bottom, right = bottom + before[2], right + before[3]
    refuse_if(
        max(top, bottom) >= kernel[0] or max(left, right) >= kernel[1],
        "padding must be smaller than the kernel",
    )
    return low.draft(
        Kind.CONV,
        conv.out_channels,
        x,
        kernel=kernel,
        stride=stride,
        padding=(top, left, bottom, right),
        weight=np.ascontiguousarray(array(conv.weight).transpose(2, 3, 1, 0)),
        bias=None if conv.bias is None else array(conv.bias),
    )


def _conv_padding(conv: nn.Conv2d) -> tuple[int, int, int, int]:
    """Return top, left, bottom, right."""
    if conv.padding == "valid":
        return 0, 0, 0, 0
    if conv.padding == "same":
        height, width = (size - 1 for size in conv.kernel_size)
        top, left = height // 2, width // 2
        return top, left, height - top, width - left
    height, width = pair(conv.padding)
    return height, width, height, width


def _linear(low: Lowering, linear: nn.Linear, x: Draft) -> Draft:
    refuse_if(len(low.shape) != 2, "it must read flattened features (images, n)")
    return low.draft(
        Kind.LINEAR,
        linear.out_features,
        x,
        weight=array(linear.weight),
        weight_scale=None,
        bias=None if linear.bias is None else array(linear.bias),
    )


def _batch_norm(low: Lowering, norm: BatchNorm, x: Draft) -> Draft:
    per_channel(low, x)
    refuse_if(
        norm.running_mean is None or norm.running_var is None,
        "it has no running statistics; build it with track_running_stats=True",
    )
    return low.extend(x, norm_step(norm))


def _layer_norm(low: Lowering, norm: nn.LayerNorm, x: Draft) -> Draft:
    of_channels = isinstance(norm, ChannelLayerNorm) or len(low.shape) == 2
    refuse_if(
        not of_channels or tuple(norm.normalized_shape) != x.shape[:1],
        "only a layer norm over the channels of each position has a packed form; "
        "use ChannelLayerNorm",
    )
    channels = x.shape[0]
    gain, offset = (
        np.full(channels, value, np.float32) if part is None else array(part)
        for part, value in ((norm.weight, 1), (norm.bias, 0))
    )
    epsilon = float(np.float32(norm.eps))
    return low.draft(
        Kind.LAYERNORM, channels, x, gain=gain, offset=offset, epsilon=epsilon
    )


def _average_pool(low: Lowering, pool: nn.AvgPool2d, x: Draft) -> Draft:
    whole = pair(pool.kernel_size) == x.shape[1:] and pair(pool.padding) == (0, 0)
    refuse_if(
        not whole or pool.divisor_override is not None,
        "only the mean over all pixels has a packed form, not one over windows",
    )
    return mean(low, x)


LAYERS: dict[type[nn.Module], Callable[..., Draft]] = {
    RotatedBinaryConv2d: _binary_conv,
    nn.Conv2d: _float_conv,
    StemConv2d: _float_conv,
    StridedPointwiseConv2d: _float_conv,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: _layer_norm,
    ChannelLayerNorm: _layer_norm,
    nn.Linear: _linear,
    nn.MaxPool2d: lambda low, pool, x: max_pool(
        low,
        x,
        pool.kernel_size,
        pool.stride,
        pool.padding,
        pool.dilation,
        pool.ceil_mode,
        pool.return_indices,
    ),
    nn.AvgPool2d: _average_pool,
    nn.AdaptiveAvgPool2d: lambda low, pool, x: mean(low, x),
    nn.Hardtanh: lambda low, layer, x: clamp(low, x, layer.min_val, layer.max_val),
    nn.Flatten: lambda low, layer, x: flatten(low, x),
    nn.Identity: lambda low, layer, x: x,
    nn.Dropout: lambda low, layer, x: x,
    nn.Dropout2d: lambda low, layer, x: x,
}

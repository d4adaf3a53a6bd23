"""Turn a trained torch network into a packed 1-bit network."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedbnn_core.binary.layer import RotatedBinaryConv2d
from fedbnn_core.binary.model import binary_layers
from fedbnn_core.errors import ConfigError
from fedbnn_core.files import write_durably
from fedbnn_core.networks.cnn4 import CNN4
from fedbnn_core.networks.convnext import ConvNeXtBlock, ConvNeXtTiny
from fedbnn_core.networks.resnet import BasicBlock, ResNet
from fedbnn_core.packed.builder import GraphBuilder, Value
from fedbnn_core.packed.encode import encode
from fedbnn_core.packed.graph import MAX_FAN_IN, Graph, Kind
from fedbnn_core.packed.threshold import fold_thresholds, reachable_sums

__all__ = ["export_packed", "pack", "write_packed"]

Floats = npt.NDArray[np.float32]
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d


def export_packed(
    model: nn.Module,
    *,
    class_names: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
    input_shape: tuple[int, int, int],
    path: str | Path,
    int8_head: bool = False,
) -> int:
    """Write a binary network to an `.fbnn` file and return the file's size.

    Parameters
    ----------
    model : nn.Module
        A binary CNN4, ResNet or ConvNeXtTiny. The signs are those that its forward
        pass uses; mark it with `binary.layer.deployed` if ``weight`` holds w~.
    class_names, mean, std
        Of the data; mean and std have one number per channel, or one for all.
    input_shape : tuple of int
        Channels, height, width.
    path : str or Path
    int8_head : bool
        Store the classifier's weights as int8 with one scale per class.
    """
    graph = pack(
        model,
        class_names=class_names,
        mean=mean,
        std=std,
        input_shape=input_shape,
        int8_head=int8_head,
    )
    data = encode(graph)
    write_packed(data, path)
    return len(data)


def write_packed(data: bytes, path: str | Path) -> None:
    """Write an `.fbnn` file, whole or not at all."""
    write_durably(Path(path), data, then="export again")


@torch.no_grad()
def pack(
    model: nn.Module,
    *,
    class_names: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
    input_shape: tuple[int, int, int],
    int8_head: bool = False,
) -> Graph:
    """Return the packed graph of a binary network; see `export_packed`."""
    _check_exportable(model)
    was_training = model.training
    model.eval()
    builder = GraphBuilder()
    channels, height, width = input_shape
    image = builder.add(Kind.INPUT, channels)
    if isinstance(model, CNN4):
        name, value = "cnn4", _pack_cnn4(builder, model, image)
    elif isinstance(model, ResNet):
        name = f"resnet{2 * len(model.blocks) + 2}"
        value = _pack_resnet(builder, model, image)
    else:
        name = "convnext-tiny"
        value = _pack_convnext(builder, cast(ConvNeXtTiny, model), image)
    logits = _linear(builder, cast(nn.Linear, model.head), value, int8=int8_head)
    model.train(was_training)
    return Graph(
        name,
        (height, width, channels),
        *_pixel_affine(mean, std, channels),
        list(class_names),
        builder.finish(logits),
    )


def _pixel_affine(
    mean: Sequence[float], std: Sequence[float], channels: int
) -> tuple[Floats, Floats]:
    """Return (pixel / 255 - mean) / std as scale and shift of the pixel.

    Rounded to float32 in the same place as `fedbnn_core.data.batches.normalise`.
    """
    for name, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, channels):
            raise ConfigError(
                f"{name} has {len(values)} numbers and the images {channels} channels; "
                "give one number for all or one for each"
            )
    means = np.resize(np.array(mean, np.float64), channels)
    deviations = np.resize(np.array(std, np.float64), channels)
    return (
        (1 / (255 * deviations)).astype(np.float32),
        (-means / deviations).astype(np.float32),
    )


def _check_exportable(model: nn.Module) -> None:
    if not isinstance(model, CNN4 | ResNet | ConvNeXtTiny):
        raise ConfigError(
            "expected a CNN4, a ResNet or a ConvNeXtTiny to export, got "
            f"{type(model).__name__}"
        )
    layers = binary_layers(model)
    if not layers:
        raise ConfigError(
            "only binary networks can be packed and this one is a float twin; "
            "train with the fedbnn method to get a 1-bit network"
        )
    for name, layer in layers.items():
        if layer.options.activation != "static":
            raise ConfigError(
                f"layer {name} standardises every sample before its sign, which has "
                'no integer threshold; train with activation = "static" to export'
            )
        if layer.weights_per_filter > MAX_FAN_IN:
            raise ConfigError(
                f"layer {name} has {layer.weights_per_filter} weights per filter; "
                f"the packed format holds at most {MAX_FAN_IN}"
            )


def _array(tensor: Tensor) -> Floats:
    return tensor.detach().cpu().float().numpy()


def _affine(norm: BatchNorm) -> dict[str, Any]:
    """Return BN as gain and offset, rounded as torch's kernel rounds them.

    fma(x, gain, offset) with gain = gamma * (1 / sqrt(var + eps)) and
    offset = beta - mean * gain in one rounding.
    """
    mean = _array(cast(Tensor, norm.running_mean))
    variance = _array(cast(Tensor, norm.running_var))
    inverse = np.float32(1) / np.sqrt(variance + np.float32(norm.eps))
    gain = (inverse * _array(norm.weight)).astype(np.float32)
    offset = _array(norm.bias) - mean.astype(np.float64) * gain
    return {"gain": gain, "offset": offset.astype(np.float32)}


def _biased(conv: RotatedBinaryConv2d, norm: BatchNorm) -> dict[str, Any]:
    """Return a binary convolution's bias and its BN, rounded one after the other."""
    bias = None if conv.bias is None else _array(conv.bias)
    return {"bias": bias, **_affine(norm)}


def _threshold(conv: RotatedBinaryConv2d, norm: BatchNorm) -> dict[str, Any]:
    """Return BN and sign as integer thresholds, decided by torch's own BN.

    BN is evaluated on every sum that the convolution can yield, so the packed bit is
    the simulated bit, rounding included.
    """
    sums = torch.from_numpy(reachable_sums(conv.weights_per_filter))
    values = sums.expand(1, conv.out_channels, 1, -1)
    if conv.bias is not None:
        values = values + conv.bias[:, None, None]
    positive = (norm(values.contiguous()) >= 0)[0, :, 0].numpy()
    thresholds, flips = fold_thresholds(positive, conv.weights_per_filter)
    return {"thresholds": thresholds, "flips": flips}


def _binary_conv(
    builder: GraphBuilder,
    conv: RotatedBinaryConv2d,
    source: Value,
    *,
    residual: Value | None = None,
    **epilogue: Any,
) -> Value:
    positive = conv.binary_weight().detach().permute(0, 2, 3, 1) > 0
    return builder.add(
        Kind.BCONV,
        conv.out_channels,
        source,
        residual=residual,
        kernel=(conv.kernel_size, conv.kernel_size),
        stride=conv.stride,
        padding=(conv.padding,) * 4,
        depthwise=conv.groups > 1,
        bits=np.packbits(positive.cpu().numpy(), axis=None, bitorder="little"),
        **epilogue,
    )


def _float_conv(
    builder: GraphBuilder,
    conv: nn.Conv2d,
    source: Value,
    *,
    padding: tuple[int, int, int, int],
    **epilogue: Any,
) -> Value:
    return builder.add(
        Kind.CONV,
        conv.out_channels,
        source,
        kernel=(conv.kernel_size[0], conv.kernel_size[1]),
        stride=conv.stride[0],
        padding=padding,
        weight=np.ascontiguousarray(_array(conv.weight).transpose(2, 3, 1, 0)),
        bias=None if conv.bias is None else _array(conv.bias),
        **epilogue,
    )


def _layer_norm(builder: GraphBuilder, norm: nn.LayerNorm, source: Value) -> Value:
    return builder.add(
        Kind.LAYERNORM,
        norm.normalized_shape[0],
        source,
        gain=_array(norm.weight),
        offset=_array(norm.bias),
        epsilon=float(np.float32(norm.eps)),
    )


def _linear(
    builder: GraphBuilder, linear: nn.Linear, source: Value, *, int8: bool
) -> Value:
    weight: npt.NDArray[Any] = _array(linear.weight)
    scale = None
    if int8:
        # A row of zeros may have any scale; 1 keeps the division defined.
        largest = np.abs(weight).max(axis=1)
        scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
        weight = np.rint(weight / scale[:, None]).astype(np.int8)
    return builder.add(
        Kind.LINEAR,
        linear.out_features,
        source,
        weight=weight,
        weight_scale=scale,
        bias=None if linear.bias is None else _array(linear.bias),
    )


def _pack_cnn4(builder: GraphBuilder, model: CNN4, value: Value) -> Value:
    """Pack [conv - BN - pool] or [conv - pool - BN], four times.

    Pooling of signs is an OR. Where it comes before a BN with negative gamma, the
    largest sum gives the smallest result: an AND.
    """
    window: dict[str, Any] = {"kernel": (2, 2), "stride": 2}
    for index, (conv, module) in enumerate(zip(model.convs, model.norms, strict=True)):
        norm = cast(nn.BatchNorm2d, module)
        channels, last = norm.num_features, index + 1 == len(model.convs)
        before, behind = _affine(norm), dict[str, Any]()
        if model.pool_before_bn:
            before, behind = behind, before
        if isinstance(conv, nn.Conv2d):
            value = _float_conv(builder, conv, value, padding=(1, 1, 1, 1), **before)
            value = builder.add(Kind.MAXPOOL, channels, value, **window, **behind)
            continue
        conv = cast(RotatedBinaryConv2d, conv)
        if last:
            value = _binary_conv(builder, conv, value, **before)
            value = builder.add(
                Kind.MAXPOOL, channels, value, **window, **behind, clamp=True
            )
        else:
            fold = _threshold(conv, norm)
            value = _binary_conv(builder, conv, value, **fold)
            mask = fold["flips"] if model.pool_before_bn else None
            value = builder.add(Kind.BITPOOL, channels, value, **window, mask=mask)
    return value


def _pack_resnet(builder: GraphBuilder, model: ResNet, value: Value) -> Value:
    value = _float_conv(
        builder, model.stem, value, padding=(1, 1, 1, 1), **_affine(model.stem_norm)
    )
    for module in model.blocks:
        block = cast(BasicBlock, module)
        conv1, conv2 = (
            cast(RotatedBinaryConv2d, conv) for conv in (block.conv1, block.conv2)
        )
        hidden = _binary_conv(builder, conv1, value, **_threshold(conv1, block.norm1))
        if isinstance(block.shortcut, nn.Sequential):
            conv, norm = block.shortcut
            affine = _affine(cast(nn.BatchNorm2d, norm))
            value = _binary_conv(
                builder, cast(RotatedBinaryConv2d, conv), value, **affine
            )
        value = _binary_conv(
            builder,
            conv2,
            hidden,
            residual=value,
            clamp=True,
            **_affine(block.norm2),
        )
    features = model.head_norm.num_features
    return builder.add(Kind.MEAN, features, value, **_affine(model.head_norm))


def _pack_convnext_block(
    builder: GraphBuilder, block: ConvNeXtBlock, value: Value
) -> Value:
    depthwise, expand, reduce = (
        cast(RotatedBinaryConv2d, conv)
        for conv in (block.depthwise, block.expand, block.reduce)
    )
    hidden = _binary_conv(
        builder, depthwise, value, **_biased(depthwise, block.depthwise_norm)
    )
    hidden = _layer_norm(builder, block.norm, hidden)
    hidden = _binary_conv(
        builder, expand, hidden, **_threshold(expand, block.expand_norm)
    )
    return _binary_conv(
        builder,
        reduce,
        hidden,
        residual=value,
        scale=_array(block.layer_scale),
        **_biased(reduce, block.reduce_norm),
    )


def _pack_convnext(builder: GraphBuilder, model: ConvNeXtTiny, value: Value) -> Value:
    value = _float_conv(builder, model.stem, value, padding=(1, 1, 2, 2))
    value = _layer_norm(builder, model.stem_norm, value)
    layers = list(model.layers)
    for layer, following in zip(layers, [*layers[1:], None], strict=True):
        if isinstance(layer, ConvNeXtBlock):
            value = _pack_convnext_block(builder, layer, value)
        elif isinstance(layer, nn.LayerNorm):
            value = _layer_norm(builder, layer, value)
        elif isinstance(layer, RotatedBinaryConv2d):
            norm = cast(nn.BatchNorm2d, following)
            value = _binary_conv(builder, layer, value, **_biased(layer, norm))
    value = builder.add(Kind.MEAN, model.head_norm.normalized_shape[0], value)
    return _layer_norm(builder, model.head_norm, value)

"""Build a network by name for an input shape and a number of classes."""

from dataclasses import dataclass, field

import torch
from torch import nn

from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.choices import MODELS
from fedbnn_core.errors import ConfigError
from fedbnn_core.networks.cnn4 import CNN4
from fedbnn_core.networks.convnext import ConvNeXtTiny
from fedbnn_core.networks.resnet import ResNet

__all__ = ["MODELS", "ModelSpec", "build_model"]


@dataclass(frozen=True)
class ModelSpec:
    """Everything that fixes a network's structure."""

    name: str
    """One of `MODELS`."""
    input_shape: tuple[int, int, int]
    """Channels, height, width."""
    num_classes: int
    binary: bool = True
    """False builds the float twin: same structure, float convolutions."""
    width: int = 64
    """First stage's channels of the ResNets (the width-reduced float baselines)."""
    pool_before_bn: bool = False
    """CNN4 only: conv, max-pool, BN instead of conv, BN, max-pool."""
    float_first: bool = False
    """CNN4 only: keep the first convolution in float."""
    options: BinaryOptions = field(default_factory=BinaryOptions)


def build_model(spec: ModelSpec, *, seed: int | None = None) -> nn.Module:
    """Return the network; ``seed`` fixes its initial weights without side effects."""
    if spec.name not in MODELS:
        raise ConfigError(f"unknown model {spec.name!r}; choose one of {MODELS}")
    if spec.num_classes < 2:
        raise ConfigError(f"a model needs >= 2 classes, got {spec.num_classes}")
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        return _construct(spec)


def _construct(spec: ModelSpec) -> nn.Module:
    if spec.name == "cnn4":
        return CNN4(
            spec.input_shape,
            spec.num_classes,
            binary=spec.binary,
            pool_before_bn=spec.pool_before_bn,
            float_first=spec.float_first,
            options=spec.options,
        )
    if spec.name == "convnext-tiny":
        return ConvNeXtTiny(
            spec.input_shape,
            spec.num_classes,
            binary=spec.binary,
            options=spec.options,
        )
    return ResNet(
        spec.input_shape,
        spec.num_classes,
        blocks_per_stage=1 if spec.name == "resnet10" else 2,
        width=spec.width,
        binary=spec.binary,
        options=spec.options,
    )

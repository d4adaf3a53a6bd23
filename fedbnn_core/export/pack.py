"""Turn a trained torch network into a packed 1-bit network."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedbnn_core.binary.model import binary_layers
from fedbnn_core.data.dataset import Dataset
from fedbnn_core.errors import ConfigError, ExportError, FormatError
from fedbnn_core.export.functions import HELPERS
from fedbnn_core.export.lowering import Lowering
from fedbnn_core.export.packers import find_packer, is_known, is_transparent
from fedbnn_core.export.trace import trace
from fedbnn_core.files import write_durably
from fedbnn_core.networks.cnn4 import CNN4
from fedbnn_core.networks.convnext import ConvNeXtTiny
from fedbnn_core.networks.resnet import ResNet
from fedbnn_core.packed.encode import encode
from fedbnn_core.packed.graph import Graph, Operation, infer_shapes

__all__ = ["check_exportable", "export_packed", "pack", "write_packed"]

Floats = npt.NDArray[np.float32]


def export_packed(
    model: nn.Module, data: Dataset, path: str | Path, *, int8_head: bool = False
) -> int:
    """Write a binary network to an `.fbnn` file and return the file's size.

    The file holds what the network computes in evaluation mode: the signs that its
    binary layers' forward pass uses, batch norms with their running statistics.

    Parameters
    ----------
    model : nn.Module
        A network of ours or your own one, made of layers that `check_exportable`
        accepts.
    data : Dataset
        Names the classes, and how images are normalized.
    path : str or Path
    int8_head : bool
        Store the classifier's weights as int8 with one scale per class.
    """
    graph = pack(
        model,
        class_names=data.class_names,
        mean=data.test_mean,
        std=data.test_std,
        input_shape=data.input_shape,
        int8_head=int8_head,
    )
    encoded = encode(graph)
    write_packed(encoded, path)
    return len(encoded)


def write_packed(data: bytes, path: str | Path) -> None:
    """Write an `.fbnn` file, whole or not at all."""
    write_durably(Path(path), data, then="export again")


def check_exportable(model: nn.Module, data: Dataset | tuple[int, int, int]) -> None:
    """Raise `ExportError` if the network has no packed form; training can wait.

    The error names every layer that is in the way, its type and the reason.

    Parameters
    ----------
    model : nn.Module
        Trained or not.
    data : Dataset or tuple of int
        What it classifies, or an image's channels, height and width.
    """
    shape = data.input_shape if isinstance(data, Dataset) else data
    operations = _operations(model, shape, int8_head=False)
    channels, height, width = shape
    ones = np.ones(channels, np.float32)
    names = [str(label) for label in range(operations[-1].out_channels)]
    graph = Graph("", (height, width, channels), ones, ones, names, operations)
    try:
        infer_shapes(graph)
    except FormatError as error:
        raise ExportError([f"{type(model).__name__}: {error}"]) from error


def pack(
    model: nn.Module,
    *,
    class_names: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
    input_shape: tuple[int, int, int],
    int8_head: bool = False,
) -> Graph:
    """Return the packed graph of a binary network.

    Parameters
    ----------
    model : nn.Module
        See `export_packed`; mark it with `deployed` if ``weight`` holds w~.
    class_names, mean, std
        Of the data; mean and std have one number per channel, or one for all.
    input_shape : tuple of int
        Channels, height, width.
    int8_head : bool
        Store the classifier's weights as int8 with one scale per class.
    """
    channels, height, width = input_shape
    scale, shift = _pixel_affine(mean, std, channels)
    operations = _operations(model, input_shape, int8_head=int8_head)
    if operations[-1].out_channels != len(class_names):
        raise ConfigError(
            f"the network tells {operations[-1].out_channels} classes apart and the "
            f"data has {len(class_names)}; build it for this data"
        )
    return Graph(
        _architecture(model),
        (height, width, channels),
        scale,
        shift,
        list(class_names),
        operations,
    )


@torch.no_grad()
def _operations(
    model: nn.Module, input_shape: tuple[int, int, int], *, int8_head: bool
) -> list[Operation]:
    if not binary_layers(model):
        raise ExportError(
            [
                f"{type(model).__name__}: it has no binary convolution; only binary "
                "networks can be packed and this one is a float twin"
            ]
        )
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        traced = trace(model, input_shape, is_leaf=is_known, functions=HELPERS)
    except Exception as error:
        raise ExportError(
            [
                f"{type(model).__name__}: its forward code cannot be followed for "
                f"images of shape {tuple(input_shape)} ({error}); call layers and "
                "functions of torch, without conditions on tensors"
            ]
        ) from error
    finally:
        for module, mode in training.items():
            module.training = mode
    lowering = Lowering(traced, find_packer, is_transparent)
    logits = lowering.run(int8_head=int8_head)
    return lowering.builder.finish(logits)


def _architecture(model: nn.Module) -> str:
    """Return the name that the file shows; one's own network has its class's name."""
    if isinstance(model, ResNet):
        return f"resnet{2 * len(model.blocks) + 2}"
    names: dict[type[nn.Module], str] = {CNN4: "cnn4", ConvNeXtTiny: "convnext-tiny"}
    return names.get(type(model), type(model).__name__)


def _pixel_affine(
    mean: Sequence[float], std: Sequence[float], channels: int
) -> tuple[Floats, Floats]:
    """Return (pixel / 255 - mean) / std as scale and shift of the pixel.

    Rounded to float32 in the same place as `fedbnn_core.data.batches.normalize`.
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

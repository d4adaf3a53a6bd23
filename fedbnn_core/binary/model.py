"""What the binary layers of one network share: their round, epoch and rotations."""

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from fedbnn_core.binary.layer import RotatedBinaryConv2d
from fedbnn_core.binary.rotation import learn_rotations
from fedbnn_core.binary.rounding import epoch_key
from fedbnn_core.binary.sign_batch import batch_signs
from fedbnn_core.binary.surrogate import Sharpness

__all__ = ["begin_epoch", "begin_round", "binary_layers", "deployed", "rotations"]


def binary_layers(model: nn.Module) -> dict[str, RotatedBinaryConv2d]:
    """Return the binary convolutions of a model by their qualified name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, RotatedBinaryConv2d)
    }


def begin_round(model: nn.Module) -> None:
    """Start a client round: freeze the broadcast weights and restart all R.

    On an accelerator the layers' signs are computed together from here on.
    """
    layers = binary_layers(model).values()
    for layer in layers:
        layer.begin_round()
    batch_signs(model, layers)


def begin_epoch(model: nn.Module, sharpness: Sharpness, *, seed: int = 0) -> None:
    """Start a local epoch: set t and k, learn the rotations of every layer.

    All rotations are learned before any is looked at, so that a device is waited for
    once. ``seed`` fixes how the epoch's gradients are rounded, if they are.
    """
    layers = list(binary_layers(model).values())
    for index, layer in enumerate(layers):
        layer.set_clock(sharpness, rounding=epoch_key(seed, index))
    turning = [layer for layer in layers if layer.weights_per_filter > 1]

    def how(layer: RotatedBinaryConv2d) -> tuple[int, bool]:
        return layer.options.rotation_iterations, layer.has_integer_gradients

    for iterations, native in {how(layer) for layer in turning}:
        alike = [layer for layer in turning if how(layer) == (iterations, native)]
        learned = learn_rotations(
            [(layer.standardized(), layer.rotation) for layer in alike],
            iterations=iterations,
            native=native,
        )
        for layer, rotation in zip(alike, learned, strict=True):
            layer.turn(rotation)


def rotations(model: nn.Module) -> dict[str, Tensor]:
    """Return R1 and R2 of every binary layer as ``<layer>.r1`` and ``<layer>.r2``."""
    return dict(_named_rotations(binary_layers(model)))


def _named_rotations(
    layers: Mapping[str, RotatedBinaryConv2d],
) -> Iterator[tuple[str, Tensor]]:
    for name, layer in layers.items():
        yield f"{name}.r1", layer.r1.detach()
        yield f"{name}.r2", layer.r2.detach()


def deployed(model: nn.Module, *, on: bool = True) -> nn.Module:
    """Mark the model's binary layers as deployed: forward uses sign(weight)."""
    for layer in binary_layers(model).values():
        layer.is_deployed = on
    return model

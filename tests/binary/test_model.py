"""What reaches all binary layers of a network."""

import torch
from torch import nn

from fedbnn_core.binary.layer import RotatedBinaryConv2d
from fedbnn_core.binary.model import (
    begin_epoch,
    begin_round,
    binary_layers,
    deployed,
    rotations,
)
from fedbnn_core.binary.surrogate import Sharpness


def test_model_wide_helpers_reach_every_layer() -> None:
    model = nn.Sequential(
        RotatedBinaryConv2d(3, 4, 3),
        nn.Sequential(RotatedBinaryConv2d(4, 4, 1)),
        nn.ReLU(),
    )
    assert list(binary_layers(model)) == ["0", "1.0"]
    begin_round(model)
    begin_epoch(model, Sharpness(0.25))
    named = rotations(model)
    sizes = {name: tuple(r.shape) for name, r in named.items()}
    assert sizes == {
        "0.r1": (3, 3),
        "0.r2": (9, 9),
        "1.0.r1": (2, 2),
        "1.0.r2": (2, 2),
    }
    assert torch.equal(named["0.r2"], model[0].r2)
    assert all(layer.sharpness.t == 0.25 for layer in binary_layers(model).values())
    assert all(layer.is_deployed for layer in binary_layers(deployed(model)).values())
    deployed(model, on=False)
    assert not any(layer.is_deployed for layer in binary_layers(model).values())

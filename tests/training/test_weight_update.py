"""Updates on frozen weights: same network, only the update learns."""

import numpy as np
import pytest
import torch
from torch import nn

from fedbnn_core.training.weight_update import (
    WeightUpdate,
    attach_updates,
    attached_updates,
    load_frozen,
    other_arrays,
    weight_layers,
)


class Offset(WeightUpdate):
    def __init__(self, weight):
        super().__init__()
        self.offset = nn.Parameter(torch.zeros_like(weight))

    def update(self):
        return self.offset


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=2, groups=2, dilation=2, stride=2),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        nn.Linear(8 * 16, 3),
    )


def plain_state(model):
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def test_groups_dilation_stride_and_bias_stay():
    plain, updated = network(), network()
    attach_updates(updated, lambda _, w: Offset(w))
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for offset in attached_updates(updated, Offset).values():
            offset.offset.fill_(0.25)
        for layer in weight_layers(plain).values():
            layer.weight += 0.25
        for layer in (plain[0], plain[3], updated[0], updated[3]):
            layer.bias.fill_(0.5)
    assert torch.equal(plain(x), updated(x))


def test_only_the_update_and_what_has_none_learns():
    model = network()
    attach_updates(model, lambda name, w: Offset(w) if name == "0" else None)
    assert list(attached_updates(model, Offset)) == ["0"]
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trainable == {
        "0.bias",
        "0.parametrizations.weight.0.offset",
        "1.weight",
        "1.bias",
        "3.weight",
        "3.bias",
    }
    assert set(other_arrays(model)) == {
        "0.bias",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
        "3.weight",
        "3.bias",
    }


def test_loading_sets_the_frozen_weight_and_keeps_the_update():
    model = network()
    attach_updates(model, lambda name, w: Offset(w) if name == "0" else None)
    with torch.no_grad():
        attached_updates(model, Offset)["0"].offset.fill_(1.0)
    state = {
        name: np.full(value.shape, 3, value.dtype)
        for name, value in plain_state(network()).items()
    }
    for value in state.values():
        value.flags.writeable = False
    load_frozen(model, state)
    assert model[0].weight.detach().unique().tolist() == [4.0]
    assert model[3].weight.detach().unique().tolist() == [3.0]
    assert int(model[1].num_batches_tracked) == 3


def test_a_state_of_another_network_is_refused():
    model = network()
    attach_updates(model, lambda _, w: Offset(w))
    state = plain_state(network())
    del state["3.bias"]
    with pytest.raises(ValueError, match=r"3\.bias"):
        load_frozen(model, state)

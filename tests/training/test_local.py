"""Local training against a training loop written out in the test."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedbnn_core.data import load_dataset
from fedbnn_core.data.batches import ClientData
from fedbnn_core.seeding import derive_seed
from fedbnn_core.training.local import LocalTask, prefer_channels_last, train_locally

TASK = LocalTask(
    round_index=3,
    num_rounds=10,
    partition_id=5,
    seed=11,
    local_epochs=2,
    batch_size=16,
    lr=0.05,
)


def linear_model():
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.01)
    return model


@pytest.fixture(scope="module")
def data():
    return ClientData.of(load_dataset("fmnist-mini"), np.arange(50))


def test_equals_softmax_regression_by_hand(data):
    """The gradient of cross-entropy is (softmax - one-hot) x^T, written out here."""
    model = linear_model()
    weight, bias = (p.detach().double().clone() for p in model[1].parameters())
    train_locally(model, data, TASK)
    for epoch in range(2):
        seed = derive_seed(11, "batches", 3, 5, epoch)
        for images, labels in data.epoch(16, seed):
            x = images.flatten(1).double()
            delta = torch.softmax(x @ weight.T + bias, dim=1)
            delta[torch.arange(len(labels)), labels] -= 1.0
            weight -= 0.05 * delta.T @ x / len(labels)
            bias -= 0.05 * delta.mean(dim=0)
    torch.testing.assert_close(model[1].weight.double(), weight, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model[1].bias.double(), bias, atol=1e-5, rtol=1e-4)


def test_returns_the_mean_loss_of_the_last_epoch(data):
    model = linear_model()
    frozen = LocalTask(**{**TASK.__dict__, "lr": 0.0})
    loss = train_locally(model, data, frozen)
    images = torch.cat([x for x, _ in data.epoch(50, 0)])
    labels = torch.cat([y for _, y in data.epoch(50, 0)])
    assert loss == pytest.approx(F.cross_entropy(model(images), labels).item(), 1e-5)


def test_is_reproducible_and_depends_on_seed_round_and_client(data):
    def trained(**changes):
        model = linear_model()
        train_locally(model, data, LocalTask(**{**TASK.__dict__, **changes}))
        return model[1].weight

    assert torch.equal(trained(), trained())
    for change in ({"seed": 12}, {"round_index": 4}, {"partition_id": 6}):
        assert not torch.equal(trained(), trained(**change))


def test_hooks_are_called_once_per_epoch_and_step(data):
    epochs, steps = [], []
    train_locally(
        linear_model(), data, TASK, begin_epoch=epochs.append, after_step=steps.append
    )
    assert epochs == [0, 1]
    assert steps == [1, 2, 3, 4, 5, 6, 7, 8]  # 50 samples: 16 + 16 + 16 + 2


def test_momentum_and_weight_decay_reach_the_optimizer(data):
    one_step = {"local_epochs": 1, "batch_size": 50}
    plain, decayed = linear_model(), linear_model()
    before = plain[1].weight.detach().clone()
    train_locally(plain, data, LocalTask(**{**TASK.__dict__, **one_step}))
    train_locally(
        decayed, data, LocalTask(**{**TASK.__dict__, **one_step, "weight_decay": 0.1})
    )
    difference = plain[1].weight - decayed[1].weight
    torch.testing.assert_close(difference, 0.05 * 0.1 * before, atol=1e-7, rtol=1e-3)


def test_a_client_without_samples_changes_nothing():
    empty = ClientData.of(load_dataset("fmnist-mini"), np.arange(0))
    model = linear_model()
    before = model[1].weight.detach().clone()
    assert train_locally(model, empty, TASK) == 0.0
    assert torch.equal(model[1].weight, before)


def test_channels_last_changes_layout_only():
    model = nn.Conv2d(8, 4, 3)
    before = model.weight.detach().clone()
    prefer_channels_last(model)
    assert torch.equal(model.weight, before)
    assert model.weight.is_contiguous(memory_format=torch.channels_last)

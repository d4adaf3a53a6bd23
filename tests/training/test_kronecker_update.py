"""FedMUD's blocks and factors against published sizes and numpy's kron."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedbnn_core.networks import build_model
from fedbnn_core.networks.complexity import spec_for
from fedbnn_core.training.kronecker_update import (
    Blocks,
    KroneckerUpdate,
    blocks_for,
    choose_blocks,
    frozen_factors,
    kronecker_update,
)
from fedbnn_core.training.weight_update import weight_layers


def float_model(model, dataset):
    return build_model(replace(spec_for(model, dataset), binary=False), seed=0)


def draw(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# Published sizes: (r, s) per layer, trained factors, total sent.
TABLE = {
    ("cnn4", "fmnist"): ([(2, 10), (8, 10), (31, 10)], 8_200, 12_008),
    ("cnn4", "svhn"): ([(1, 12), (1, 17), (1, 24)], 2_018, 14_082),
    ("resnet10", "cifar10"): (
        [
            *((7, 9), (7, 9)),
            *((13, 9), (26, 9), (2, 8)),
            *((51, 9), (102, 9), (6, 9)),
            *((204, 9), (407, 9), (23, 9)),
        ],
        137_308,
        150_950,
    ),
    ("resnet18", "tiny-imagenet"): (None, 230_400, 345_352),
}


@pytest.mark.parametrize(("pair", "expected"), TABLE.items())
def test_parameter_totals_of_the_published_runs(pair, expected):
    shapes, factors, sent = expected
    model = float_model(*pair)
    blocks = choose_blocks(model, 1 / 32)
    if shapes is not None:
        assert [(b.count, b.size) for b in blocks.values()] == shapes
    assert sum(b.trained for b in blocks.values()) == factors
    layers = weight_layers(model)
    names = list(layers)
    assert list(blocks) == names[1:-1]
    total = sum(p.numel() for p in model.parameters())
    decomposed = sum(layers[name].weight.numel() for name in blocks)
    assert total - decomposed + factors == sent


def test_blocks_cover_the_layer_and_are_the_smallest_that_do():
    for size in (1, 9, 16, 81, 10_000, 18_432, 73_728, 294_912, 2_359_296):
        for ratio in (0.00025, 0.02025, 0.03125, 0.5):
            blocks = blocks_for(size, ratio)
            assert blocks.count * blocks.size**4 >= size
            assert blocks.size == 1 or blocks.count * (blocks.size - 1) ** 4 < size


def test_update_equals_kronecker_products_laid_end_to_end():
    blocks, shape = Blocks(3, 4), torch.Size((7, 11, 3, 3))
    size = (blocks.count, blocks.size, blocks.size)
    a, b, a_frozen, b_frozen = (draw(size, seed) for seed in range(4))
    update = kronecker_update((a, b), (a_frozen, b_frozen), shape)
    flat = [
        np.kron(a_frozen[o].numpy(), b[o].numpy())
        + np.kron(a[o].numpy(), b_frozen[o].numpy())
        for o in range(blocks.count)
    ]
    expected = np.concatenate([block.ravel() for block in flat])[: shape.numel()]
    np.testing.assert_allclose(update.numpy().ravel(), expected, atol=1e-6)


def test_mean_of_factors_is_the_mean_of_updates():
    blocks, shape = Blocks(8, 10), torch.Size((128, 64, 3, 3))
    size = (blocks.count, blocks.size, blocks.size)
    frozen = frozen_factors({"layer": blocks}, 7, 5.0)["layer"]
    weights = [0.5, 0.2, 0.3]
    clients = [
        (0.01 * draw(size, 10 * k), 0.01 * draw(size, 10 * k + 1)) for k in range(3)
    ]
    mean = tuple(
        sum(p * client[i] for p, client in zip(weights, clients, strict=True))
        for i in range(2)
    )
    updates = sum(
        p * kronecker_update(client, frozen, shape)
        for p, client in zip(weights, clients, strict=True)
    )
    difference = kronecker_update(mean, frozen, shape) - updates
    assert difference.abs().max() <= 1e-6
    assert updates.abs().max() > 0.1


def test_frozen_factors_come_from_the_seed_alone():
    blocks = {"one": Blocks(4, 6), "two": Blocks(4, 6)}
    first, again = (frozen_factors(blocks, 3, 5.0) for _ in range(2))
    other = frozen_factors(blocks, 4, 5.0)
    for name, pair in first.items():
        for i in range(2):
            assert torch.equal(pair[i], again[name][i])
            assert not torch.equal(pair[i], other[name][i])
    # Four different draws, spread evenly over (-5, 5).
    draws = torch.stack([factor for pair in first.values() for factor in pair])
    assert len({tuple(d.flatten().tolist()) for d in draws}) == 4
    assert draws.abs().max() < 5.0
    assert draws.std().item() == pytest.approx(5 / 3**0.5, rel=0.1)


def test_update_is_zero_at_the_start_and_both_factors_learn():
    weight = draw((16, 8, 3, 3), 0)
    blocks = blocks_for(weight.numel(), 0.03125)
    update = KroneckerUpdate(weight, blocks)
    update.begin_round(frozen_factors({"layer": blocks}, 0, 5.0)["layer"])
    assert torch.equal(update(weight), weight)
    update(weight).square().sum().backward()
    assert update.a.grad.abs().min() > 0
    assert update.b.grad.abs().min() > 0

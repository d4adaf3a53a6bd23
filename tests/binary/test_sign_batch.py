"""A network whose layers' signs are computed together trains as layer by layer."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fedbnn_core.binary import BinaryOptions, RotatedBinaryConv2d, Sharpness, devices
from fedbnn_core.binary.model import begin_epoch, begin_round, binary_layers, deployed


class Network(nn.Module):
    """Layers of several shapes, one of them with a single weight in a filter."""

    def __init__(self, options: BinaryOptions | None = None) -> None:
        super().__init__()

        def conv(*sizes: int, **more: int) -> RotatedBinaryConv2d:
            return RotatedBinaryConv2d(*sizes, options=options, scale=True, **more)

        self.parts = nn.Sequential(
            conv(3, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            conv(6, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            conv(6, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            conv(6, 6, 1, groups=6),
            nn.BatchNorm2d(6),
            conv(6, 4, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x).mean(dim=(2, 3))


def network(**options: object) -> Network:
    torch.manual_seed(0)
    return Network(BinaryOptions(**options)).double()


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "LAYER_BY_LAYER", ())


def images(seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 3, 8, 8, generator=generator, dtype=torch.float64)


def train(model: nn.Module, rounds: int = 2) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for round_index in range(rounds):
        begin_round(model)
        for epoch in range(2):
            begin_epoch(model, Sharpness.at(round_index, rounds, epoch, 2))
            for step in range(2):
                optimizer.zero_grad()
                model(images(10 * epoch + step)).square().sum().backward()
                optimizer.step()


def is_hooked(model: nn.Module) -> bool:
    return bool(model._forward_pre_hooks)


@pytest.mark.parametrize(
    "options", [{}, {"server_alignment": False}, {"rotation_start": "haar"}], ids=str
)
def test_training_is_that_of_layers_one_by_one(options, monkeypatch) -> None:
    alone, batched = network(**options), network(**options)
    train(alone)
    monkeypatch.setattr(devices, "LAYER_BY_LAYER", ())
    train(batched)
    assert is_hooked(batched)
    assert not is_hooked(alone)
    for (name, ours), theirs in zip(
        batched.named_parameters(), alone.parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-8, msg=name)


@pytest.mark.usefixtures("together")
def test_it_is_hooked_in_once_and_knows_changed_buffers() -> None:
    model = network()
    for _ in range(3):
        begin_round(model)
    assert len(model._forward_pre_hooks) == 1
    layers = list(binary_layers(model).values())
    begin_epoch(model, Sharpness(1.0))
    before = model(images())
    layers[1].r1.copy_(layers[1].r1.flip(0))
    layers[2].w_server.mul_(-1.0)
    after = model(images())
    assert not torch.equal(before, after)
    model._forward_pre_hooks.clear()
    torch.testing.assert_close(model(images()), after)


@pytest.mark.usefixtures("together")
def test_nothing_is_left_for_a_layer_that_is_used_alone() -> None:
    model = network()
    begin_round(model)
    begin_epoch(model, Sharpness(1.0))
    first = next(iter(binary_layers(model).values()))
    with pytest.raises(RuntimeError):
        model(torch.zeros(1, 2, 8, 8, dtype=torch.float64))
    with torch.no_grad():
        first.weight.neg_()
        first.w_server.neg_()
        first.z_server.neg_()
    # A prepared sign would be the opposite one.
    signs = {name: layer.ready_sign for name, layer in binary_layers(model).items()}
    assert set(signs.values()) == {None}


@pytest.mark.usefixtures("together")
def test_a_layer_used_twice_gets_both_gradients(monkeypatch) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.conv = RotatedBinaryConv2d(4, 4, 3, padding=1)
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(self.norm(self.conv(x)))

    x = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(4)).double()
    grads = []
    for kinds in ((), ("cpu",)):
        monkeypatch.setattr(devices, "LAYER_BY_LAYER", kinds)
        model = Twice().double()
        begin_round(model)
        begin_epoch(model, Sharpness(1.0))
        (model(x) * torch.arange(4.0)[:, None, None]).sum().backward()
        grads.append(model.conv.weight.grad)
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-10)


@pytest.mark.usefixtures("together")
def test_a_copy_trains_for_itself() -> None:
    model = network()
    train(model, rounds=1)
    twin = copy.deepcopy(model)
    before = model(images())
    torch.testing.assert_close(twin(images()), before)
    train(twin, rounds=1)
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(images()), model(images()))
    assert not torch.equal(twin.parts[0].weight, model.parts[0].weight)


@pytest.mark.usefixtures("together")
def test_layers_that_disagree_and_deployed_ones_compute_for_themselves() -> None:
    model = network()
    begin_round(model)
    begin_epoch(model, Sharpness(1.0))
    expected = model(images())
    layers = list(binary_layers(model).values())
    layers[0].set_clock(Sharpness(0.5))
    assert torch.equal(model(images()), expected)
    deployed(model)
    model._forward_pre_hooks[next(iter(model._forward_pre_hooks))](model, ())
    assert all(layer.ready_sign is None for layer in layers)

"""Values, gradients and memory layout of the layout-keeping steps."""

import pytest
import torch

from fedbnn_core.binary.memory_layout import hardtanh, pixel_mean, subsample
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.training.local import prefer_channels_last

LAYOUTS = [torch.contiguous_format, torch.channels_last]


def images(*shape, layout=torch.contiguous_format):
    generator = torch.Generator().manual_seed(4)
    x = 2 * torch.randn(shape, generator=generator)
    return x.to(memory_format=layout).requires_grad_()


def test_hardtanh_clamps_to_one():
    x = torch.tensor([-3.0, -1.0, -0.2, 0.0, 0.4, 1.0, 1.5], requires_grad=True)
    y = hardtanh(x)
    assert y.tolist() == pytest.approx([-1.0, -1.0, -0.2, 0.0, 0.4, 1.0, 1.0])
    y.backward(torch.arange(1.0, 8.0))
    assert x.grad.tolist() == [0, 0, 3, 4, 5, 0, 0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("grad_layout", LAYOUTS)
def test_gradient_of_hardtanh_has_the_layout_of_the_input(layout, grad_layout):
    x = images(2, 3, 4, 5, layout=layout)
    grad = torch.randn(2, 3, 4, 5).to(memory_format=grad_layout)
    (found,) = torch.autograd.grad(hardtanh(x), x, grad)
    assert torch.equal(found, torch.where(x.detach().abs() < 1, grad, 0.0))
    assert found.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pixel_mean_spreads_its_gradient_in_the_layout_of_the_input(layout):
    x = images(2, 3, 4, 5, layout=layout)
    y = pixel_mean(x)
    grad = torch.randn(2, 3)
    (found,) = torch.autograd.grad(y, x, grad)
    for n in range(2):
        for c in range(3):
            total = sum(x[n, c].flatten().tolist())
            assert y[n, c].item() == pytest.approx(total / 20, abs=1e-6)
            assert found[n, c].flatten().tolist() == pytest.approx(
                [grad[n, c].item() / 20] * 20
            )
    assert found.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("step", [1, 2, 3])
def test_subsample_takes_every_step_th_pixel(layout, step):
    x = images(2, 3, 5, 4, layout=layout)
    y = subsample(x, step)
    grad = torch.randn(y.shape)
    (found,) = torch.autograd.grad(y, x, grad)
    expected = torch.zeros(2, 3, 5, 4)
    for i in range(0, 5, step):
        for j in range(0, 4, step):
            assert torch.equal(y[:, :, i // step, j // step], x[:, :, i, j])
            expected[:, :, i, j] = grad[:, :, i // step, j // step]
    assert torch.equal(found, expected)
    if step > 1:
        assert found.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "float"])
def test_gradients_stay_channels_last_through_a_resnet(binary):
    spec = ModelSpec("resnet10", (3, 32, 32), 4, binary=binary, width=8)
    model = prefer_channels_last(build_model(spec, seed=0)).train()
    layouts = {}

    def watch(name):
        def note(grad):
            layouts[name] = grad.is_contiguous(memory_format=torch.channels_last)

        return lambda module, inputs, output: output.register_hook(note) and None

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.register_forward_hook(watch(name))
    x = images(2, 3, 32, 32, layout=torch.channels_last)
    model(x).square().sum().backward()
    assert len(layouts) == 12
    assert all(layouts.values()), layouts

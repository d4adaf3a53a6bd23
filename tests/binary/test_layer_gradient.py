"""A binary layer's gradients against autograd of a plainly padded convolution."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbnn_core.binary.layer import RotatedBinaryConv2d
from fedbnn_core.binary.surrogate import Sharpness


def layer_of(seed: int = 0, **kwargs: bool) -> RotatedBinaryConv2d:
    """Return a layer of one-padded 3x3 filters in float64, t = k = 1."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = RotatedBinaryConv2d(3, 4, 3, padding=1, clamp=False, **kwargs).double()
    layer.begin_round()
    layer.begin_epoch(Sharpness(1.0))
    if layer.scale is not None:
        with torch.no_grad():
            layer.scale.copy_(normal(4, seed=9))
    return layer


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def weight_gradient(layer: RotatedBinaryConv2d, d_sign: Tensor) -> dict[str, Tensor]:
    """Return the parameters' gradients for a given dL/dsign(w~)."""
    layer.zero_grad()
    layer.binary_weight().backward(d_sign)
    return gradients(layer)


def gradients(layer: RotatedBinaryConv2d) -> dict[str, Tensor]:
    names = ("weight", "omega", "theta", "gamma")
    return {name: layer.get_parameter(name).grad.clone() for name in names}


def padded(x: Tensor) -> Tensor:
    return F.pad(x, (1, 1, 1, 1), value=1.0)


def signs_of(x: Tensor) -> Tensor:
    return torch.where(x >= 0, 1.0, -1.0).double()


def behind(tail: str) -> nn.Module:
    """Return what follows the layer."""
    parts: list[nn.Module] = [nn.MaxPool2d(2)] if "pool" in tail else []
    parts += [nn.BatchNorm2d(4).double()] if "norm" in tail else []
    return nn.Sequential(*parts)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("norm_follows", [False, True])
@pytest.mark.parametrize("tail", ["", "pool", "norm", "pool, norm"])
def test_gradients_equal_those_of_a_plain_convolution(
    scale: bool, bias: bool, norm_follows: bool, tail: str
) -> None:
    """With ``norm_follows`` exact in front of a BN, without it everywhere."""
    layer = layer_of(scale=scale, bias=bias, norm_follows=norm_follows)
    with torch.no_grad():
        layer.weight += 0.1 * normal(*layer.weight.shape, seed=5)
    x = normal(2, 3, 6, 6, seed=1).requires_grad_()
    tail_module = behind(tail)
    out = tail_module(layer(x))
    upstream = normal(*out.shape, seed=2)
    out.backward(upstream)
    found = gradients(layer)

    weight = layer.binary_weight().detach().requires_grad_()
    signs = signs_of(x.detach()).requires_grad_()
    factor = 1.0 if layer.scale is None else layer.scale.detach()[:, None, None]
    tail_module(F.conv2d(padded(signs), weight) * factor).backward(upstream)
    expected = weight_gradient(layer, weight.grad)

    slope = (math.sqrt(2) - x.detach().abs()).clamp_min(0)
    torch.testing.assert_close(x.grad, signs.grad * slope)
    assert found["weight"].abs().max() > 0
    if norm_follows and "norm" not in tail:
        assert not torch.allclose(found["weight"], expected["weight"])
    else:
        torch.testing.assert_close(found, expected)


def test_the_bias_has_its_gradient() -> None:
    layer = layer_of(bias=True)
    upstream = normal(2, 4, 5, 5, seed=2)
    layer(normal(2, 3, 5, 5, seed=1)).backward(upstream)
    torch.testing.assert_close(layer.bias.grad, upstream.sum(dim=(0, 2, 3)))

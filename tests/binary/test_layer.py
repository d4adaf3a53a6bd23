"""The rotated binary convolution against loops and against what a round requires."""

import copy
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedbnn_core.binary.layer import RotatedBinaryConv2d
from fedbnn_core.binary.model import (
    begin_epoch,
    begin_round,
    deployed,
)
from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.binary.surrogate import Sharpness
from tests.binary.reference import layer_of, normal, plus_minus, standardized

# One forward pass needs no clock.
pytestmark = pytest.mark.filterwarnings("ignore:a binary layer is trained without")


def mixed_weight(layer: RotatedBinaryConv2d, w_server: np.ndarray) -> np.ndarray:
    """w~ from the layer's parameters and R."""
    w = layer.weight.detach().double().numpy()
    lam = 1 / (1 + math.exp(-layer.omega.item()))
    alpha = abs(math.sin(layer.theta.item()))
    beta = abs(math.sin(layer.gamma.item()))
    r = np.kron(layer.r1.double().numpy(), layer.r2.double().numpy())
    fused = standardized(lam * w + (1 - lam) * w_server)
    rotated = (fused.reshape(len(w), -1) @ r).reshape(w.shape)
    return (
        (1 - alpha) * fused
        + alpha * beta * rotated
        + alpha * (1 - beta) * standardized(w_server)
    )


def one_padded_convolution(
    a: np.ndarray, w: np.ndarray, *, stride: int, padding: int, groups: int
) -> np.ndarray:
    """Convolve +-1 with +-1 by loops; taps outside the image are +1."""
    batch, _, height, width = a.shape
    out_channels, group_channels, size, _ = w.shape
    per_group = out_channels // groups
    out_h = (height + 2 * padding - size) // stride + 1
    out_w = (width + 2 * padding - size) // stride + 1
    out = np.zeros((batch, out_channels, out_h, out_w), dtype=np.int64)
    for b, o, i, j in np.ndindex(out.shape):
        for c, di, dj in np.ndindex(group_channels, size, size):
            row, column = i * stride + di - padding, j * stride + dj - padding
            inside = 0 <= row < height and 0 <= column < width
            channel = (o // per_group) * group_channels + c
            tap = a[b, channel, row, column] if inside else 1
            out[b, o, i, j] += tap * w[o, c, di, dj]
    return out


GEOMETRIES = [  # in, out, kernel, stride, padding, groups, height, width
    (3, 5, 3, 1, 1, 1, 5, 4),
    (3, 5, 3, 1, 0, 1, 5, 4),
    (1, 4, 3, 1, 1, 1, 6, 6),
    (7, 3, 3, 2, 1, 1, 7, 6),
    (5, 6, 1, 2, 0, 1, 5, 5),
    (4, 6, 2, 2, 0, 1, 6, 4),
    (4, 6, 3, 1, 2, 2, 4, 4),
    (6, 6, 3, 1, 1, 6, 4, 4),
    (3, 3, 7, 1, 3, 3, 5, 5),
    (3, 2, 3, 3, 2, 1, 5, 5),
    (4, 4, 3, 1, 1, 1, 1, 1),
    (4, 4, 1, 1, 0, 1, 1, 1),
]


_STRIDED = """
import sys
import torch
from torch import nn
from fedbnn_core.training.sign_update import BinaryUpdate
from fedbnn_core.training.kronecker_update import Blocks, KroneckerUpdate
from fedbnn_core.networks.blocks import convolution
from fedbnn_core.training.weight_update import attach_updates

UPDATES = {
    "fedbat": lambda _, w: BinaryUpdate(w, rho=6.0),
    "fedmud": lambda _, w: KroneckerUpdate(w, Blocks(1, 3)),
}
kind = sys.argv[1]
torch.manual_seed(0)
torch.set_num_threads(1)
for channels in (1, 2, 3, 5):
    layer = convolution(channels, 2 * channels, 1, stride=2, binary=kind == "binary")
    model = nn.Sequential(layer)
    if kind in UPDATES:
        attach_updates(model, UPDATES[kind])
        with torch.no_grad():  # Kronecker factors of zero would have no gradient.
            for array in model.state_dict().values():
                array.add_(0.5)
    for _ in range(200):
        x = torch.randn(8, channels, 8, 8).to(memory_format=torch.channels_last)
        x.requires_grad_()
        model(x).square().sum().backward()
        used = torch.zeros(8, 8)
        used[::2, ::2] = 1
        assert not (x.grad * (1 - used)).any()
        assert x.grad.any()
    assert any(p.grad.any() for p in model.parameters() if p.requires_grad)
"""


@pytest.mark.parametrize("kind", ["binary", "float", "fedbat", "fedmud"])
def test_strided_pointwise_convolution_of_few_channels_keeps_to_its_memory(
    kind: str,
) -> None:
    """In a process of its own: what it guards against kills the process."""
    command = [sys.executable, "-c", _STRIDED, kind]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("is_deployed", [False, True])
def test_forward_equals_a_loop(
    geometry: tuple[int, ...], bias: bool, is_deployed: bool
) -> None:
    c_in, c_out, size, stride, padding, groups, height, width = geometry
    layer = layer_of(
        c_in,
        c_out,
        size,
        stride=stride,
        padding=padding,
        groups=groups,
        bias=bias,
        scale=bias,
    )
    w_server = layer.weight.detach().double().numpy().copy()
    with torch.no_grad():
        layer.weight += 0.3 * normal(*layer.weight.shape, seed=1)
        if bias:
            layer.bias.copy_(normal(c_out, seed=2))
            layer.scale.copy_(normal(c_out, seed=3))
    layer.begin_epoch(Sharpness(1.0))
    deployed(layer, on=is_deployed)
    x = normal(2, c_in, height, width, seed=4)
    x[0, 0, 0, 0] = 0.0  # counts as +1

    latent = (
        layer.weight.detach().numpy() if is_deployed else mixed_weight(layer, w_server)
    )
    expected = one_padded_convolution(
        plus_minus(x.numpy()),
        plus_minus(latent),
        stride=stride,
        padding=padding,
        groups=groups,
    )
    with torch.no_grad():
        out = layer(x).numpy()
    if not bias:
        np.testing.assert_array_equal(out, expected)
        return
    affine = expected * layer.scale.detach().numpy()[:, None, None]
    affine = affine + layer.bias.detach().numpy()[:, None, None]
    np.testing.assert_allclose(out, affine, rtol=1e-6, atol=1e-5)


def test_wide_layers_sum_exactly() -> None:
    """4608 taps: every output is an exact integer of the right parity."""
    layer = deployed(layer_of(512, 8, 3, padding=1))
    x = normal(1, 512, 5, 5)
    a = np.pad(
        plus_minus(x.numpy()), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=1
    )
    windows = np.lib.stride_tricks.sliding_window_view(a, (3, 3), axis=(2, 3))
    w = plus_minus(layer.weight.detach().numpy())
    expected = np.einsum("bchwij,ocij->bohw", windows, w)
    with torch.no_grad():
        np.testing.assert_array_equal(layer(x).numpy(), expected)


def test_an_empty_batch_passes() -> None:
    layer = layer_of(3, 4, 3, padding=1)
    assert layer(torch.zeros(0, 3, 6, 6)).shape == (0, 4, 6, 6)


def test_per_sample_activation_standardizes_each_image() -> None:
    options = BinaryOptions(activation="per-sample")
    layer = deployed(layer_of(3, 4, 3, padding=1, options=options))
    x = normal(3, 3, 4, 4) * 2 + torch.tensor([5.0, -5.0, 0.0])[:, None, None, None]
    a = np.stack([plus_minus(image - image.mean()) for image in x.numpy()])
    expected = one_padded_convolution(
        a, plus_minus(layer.weight.detach().numpy()), stride=1, padding=1, groups=1
    )
    with torch.no_grad():
        np.testing.assert_array_equal(layer(x).numpy(), expected)


@pytest.mark.parametrize("shape", [(2, 1, 1, 1), (2, 3, 2, 2), (0, 3, 2, 2)])
def test_per_sample_activation_survives_constant_images(
    shape: tuple[int, int, int, int],
) -> None:
    options = BinaryOptions(activation="per-sample")
    layer = layer_of(shape[1], 4, 1, options=options)
    x = torch.full(shape, 0.7, requires_grad=True)
    out = layer(x)
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(layer.weight.grad).all()


def test_filters_of_one_weight_train() -> None:
    layer = layer_of(5, 5, 1, groups=5, clamp=False)
    begin_round(layer)
    begin_epoch(layer, Sharpness(0.2))
    x = normal(2, 5, 3, 3)
    out = layer(x)
    w = plus_minus(layer.weight.detach().numpy())  # every path keeps the sign
    np.testing.assert_array_equal(out.detach().numpy(), plus_minus(x.numpy()) * w[:, 0])
    out.square().sum().backward()
    assert torch.isfinite(layer.weight.grad).all()


def test_diagnostics_equal_the_formula() -> None:
    layer = layer_of(4, 6, 3)
    with torch.no_grad():
        layer.theta.fill_(0.3)
        layer.gamma.fill_(-1.2)
        layer.omega.fill_(0.9)
        layer.weight.copy_(normal(*layer.weight.shape, seed=9))
    layer.begin_epoch(Sharpness(1.0))
    seen = layer.diagnostics()
    assert seen.alpha == pytest.approx(math.sin(0.3))
    assert seen.beta == pytest.approx(math.sin(1.2))
    assert seen.lam == pytest.approx(1 / (1 + math.exp(-0.9)))
    w = standardized(layer.weight.detach().double().numpy()).reshape(6, 6, 6)
    r1, r2 = layer.r1.double().numpy(), layer.r2.double().numpy()
    cosines = []
    for block in w:
        v = (r1.T @ block @ r2).ravel()
        cosines.append(plus_minus(v) @ v / (math.sqrt(v.size) * np.linalg.norm(v)))
    assert seen.cos_phi == pytest.approx(np.mean(cosines), abs=1e-6)


def test_a_rounds_own_buffers_are_not_part_of_the_state() -> None:
    layer = layer_of(4, 6, 3, bias=True, scale=True)
    names = {"weight", "omega", "theta", "gamma", "bias", "scale"}
    assert set(layer.state_dict()) == names
    assert {name for name, _ in layer.named_parameters()} == names
    assert set(layer_of(4, 6, 3).state_dict()) == names - {"bias", "scale"}


def test_a_deployed_layer_ignores_rotation_and_server() -> None:
    layer = layer_of(4, 6, 3, padding=1)
    begin_epoch(layer, Sharpness(1.0))
    twin = deployed(copy.deepcopy(layer))
    with torch.no_grad():
        twin.r1.copy_(normal(6, 6))
        twin.w_server.zero_()
        twin.theta.fill_(1.0)
    x = normal(2, 4, 5, 5)
    assert torch.equal(twin(x), deployed(layer)(x))

"""The networks: shapes, what is binary, published counts, twins."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedbnn_core.binary.memory_layout import hardtanh
from fedbnn_core.binary.model import binary_layers, deployed
from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.errors import ConfigError
from fedbnn_core.networks import MODELS, ModelSpec, blocks, build_model
from fedbnn_core.networks.blocks import ChannelLayerNorm, convolution
from fedbnn_core.networks.convnext import ConvNeXtBlock

# model, input shape, classes, w, R1 and R2, as in the paper's table of overheads.
PUBLISHED = [
    ("cnn4", (1, 28, 28), 10, 387_360, 4_070),
    ("cnn4", (3, 32, 32), 10, 387_936, 4_142),
    ("resnet10", (3, 32, 32), 10, 4_890_624, 27_552),
    ("resnet18", (3, 64, 64), 200, 11_157_504, 62_272),
    ("resnet18", (3, 28, 28), 62, 11_157_504, 62_272),
    ("convnext-tiny", (3, 32, 32), 10, 27_751_392, 78_084),
]
# Trained numbers P of the float net, counted outside this code; resnet10 with a head
# bias.
TRAINED = [390_880, 399_136, 4_904_266, 11_272_456, 11_201_662, 27_909_994]


def on_meta(spec: ModelSpec) -> nn.Module:
    with torch.device("meta"):
        return build_model(spec)


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("name", "shape", "classes", "w", "r"), PUBLISHED)
def test_binary_weights_and_rotations_have_the_published_counts(
    name: str, shape: tuple[int, int, int], classes: int, w: int, r: int
) -> None:
    model = on_meta(ModelSpec(name, shape, classes))
    layers = binary_layers(model).values()
    assert sum(layer.weight.numel() for layer in layers) == w
    assert sum(layer.r1.shape[0] ** 2 + layer.r2.shape[0] ** 2 for layer in layers) == r


@pytest.mark.parametrize(("row", "trained"), list(zip(PUBLISHED, TRAINED, strict=True)))
def test_twins_differ_by_three_scalars_per_binary_layer(
    row: tuple[str, tuple[int, int, int], int, int, int], trained: int
) -> None:
    spec = ModelSpec(row[0], row[1], row[2])
    binary, real = on_meta(spec), on_meta(replace(spec, binary=False))
    float_state = {name: value.shape for name, value in real.state_dict().items()}
    binary_state = {name: value.shape for name, value in binary.state_dict().items()}
    scalars = {
        f"{layer}.{scalar}"
        for layer in binary_layers(binary)
        for scalar in ("omega", "theta", "gamma")
    }
    assert set(binary_state) - set(float_state) == scalars
    assert all(binary_state[name] == () for name in scalars)
    assert {k: v for k, v in binary_state.items() if k not in scalars} == float_state
    assert sum(p.numel() for p in real.parameters()) == trained
    assert not binary_layers(real)


@pytest.mark.parametrize(
    ("name", "float_convs", "binary_convs"),
    [
        ("cnn4", [], 4),
        ("resnet10", ["stem"], 8 + 3),
        ("resnet18", ["stem"], 16 + 3),
        ("convnext-tiny", ["stem"], 3 * 18 + 3),
    ],
)
def test_only_stems_stay_float(
    name: str, float_convs: list[str], binary_convs: int
) -> None:
    model = on_meta(ModelSpec(name, (3, 32, 32), 10))
    found = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d)]
    assert found == float_convs
    assert len(binary_layers(model)) == binary_convs
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    assert linear == ["head"]


@pytest.mark.parametrize(
    ("name", "unclamped"),
    [
        ("cnn4", {"convs.0"}),  # sees the image
        ("resnet10", {"blocks.0.conv1"}),  # sees the stem, without activation
        ("resnet18", {"blocks.0.conv1"}),
    ],
)
def test_a_hardtanh_stands_before_every_other_sign(
    name: str, unclamped: set[str]
) -> None:
    layers = binary_layers(on_meta(ModelSpec(name, (3, 32, 32), 10)))
    assert {n for n, layer in layers.items() if not layer.clamp} == unclamped


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(
    ("shape", "classes"),
    [((1, 28, 28), 10), ((3, 64, 64), 200), ((2, 16, 24), 3), ((3, 33, 47), 62)],
)
def test_networks_adapt_to_their_input(
    name: str, binary: bool, shape: tuple[int, int, int], classes: int
) -> None:
    model = on_meta(ModelSpec(name, shape, classes, binary=binary))
    out = deployed(model).eval()(torch.empty(2, *shape, device="meta"))
    assert out.shape == (2, classes)


@pytest.mark.parametrize("name", ["cnn4", "resnet10"])
@pytest.mark.parametrize("binary", [True, False])
def test_a_step_reaches_every_parameter(name: str, binary: bool) -> None:
    spec = ModelSpec(name, (1, 16, 16), 4, binary=binary, width=16)
    model = build_model(spec, seed=1)
    with torch.no_grad():
        for layer in binary_layers(model).values():  # lambda acts once w_l moved
            layer.weight += 0.01 * images(*layer.weight.shape)
    loss = F.cross_entropy(model(images(4, 1, 16, 16)), torch.tensor([0, 1, 2, 3]))
    loss.backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name


def trace(model: nn.Module, shape: tuple[int, int, int]) -> dict[str, tuple[int, ...]]:
    """Return the output shape of every convolution."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, module in model.named_modules():
        if hasattr(module, "kernel_size"):
            module.register_forward_hook(
                lambda _m, _i, out, name=name: shapes.update({name: tuple(out.shape)})
            )
    deployed(model).eval()(torch.empty(1, *shape, device="meta"))
    return shapes


def test_convnext_keeps_the_image_size_behind_the_stem() -> None:
    shape = (3, 32, 32)
    shapes = trace(on_meta(ModelSpec("convnext-tiny", shape, 10)), shape)
    assert shapes["stem"] == (1, 96, 32, 32)
    stages = {(s[1], s[2], s[3]) for n, s in shapes.items() if n.endswith("depthwise")}
    assert stages == {(96, 32, 32), (192, 16, 16), (384, 8, 8), (768, 4, 4)}


@pytest.mark.parametrize(
    ("shape", "sides"),
    [((3, 32, 32), [32, 16, 8, 4]), ((3, 28, 28), [28, 14, 7, 4])],
)
def test_resnet_halves_its_maps_three_times(
    shape: tuple[int, int, int], sides: list[int]
) -> None:
    shapes = trace(on_meta(ModelSpec("resnet10", shape, 10)), shape)
    assert shapes["stem"] == (1, 64, *shape[1:])
    for stage, side in enumerate(sides):
        assert shapes[f"blocks.{stage}.conv2"] == (1, 64 * 2**stage, side, side)


@pytest.mark.parametrize(
    ("shape", "features"), [((1, 28, 28), 256), ((3, 32, 32), 1024)]
)
def test_cnn4_feeds_its_head_without_bias(
    shape: tuple[int, int, int], features: int
) -> None:
    model = build_model(ModelSpec("cnn4", shape, 10))
    assert model.head.weight.shape == (10, features)
    assert model.head.bias is None


def test_resnets_have_a_batch_norm_before_a_head_with_bias() -> None:
    for name in ("resnet10", "resnet18"):
        model = on_meta(ModelSpec(name, (3, 32, 32), 10))
        norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d)]
        assert [norm.num_features for norm in norms] == [512]
        assert model.head.bias.shape == (10,)


def test_clamping_behind_the_pooling_changes_nothing() -> None:
    x = 2 * images(3, 4, 9, 7)
    before = F.max_pool2d(F.hardtanh(x), 2)
    assert torch.equal(hardtanh(F.max_pool2d(x, 2)), before)


def scramble_norms(model: nn.Module) -> None:
    """Give every batch norm statistics and factors that matter, of either sign."""
    with torch.no_grad():
        for index, norm in enumerate(model.modules()):
            if isinstance(norm, nn.BatchNorm2d | nn.BatchNorm1d):
                channels = norm.num_features
                norm.running_mean.copy_(3 * images(channels, seed=index))
                norm.running_var.copy_(60 + 30 * images(channels, seed=900 + index))
                norm.running_var.abs_()
                norm.weight.copy_(images(channels, seed=2000 + index))
                norm.bias.copy_(0.5 * images(channels, seed=3000 + index))


def normalized(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    mean, var = norm.running_mean[:, None, None], norm.running_var[:, None, None]
    x = (x - mean) / (var + norm.eps).sqrt()
    return x * norm.weight[:, None, None] + norm.bias[:, None, None]


def binary_convolution(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    signs, p = torch.where(x >= 0, 1.0, -1.0), layer.padding
    weight = torch.where(layer.weight >= 0, 1.0, -1.0)
    padded = F.pad(signs, (p, p, p, p), value=1.0)
    return F.conv2d(
        padded, weight, layer.bias, stride=layer.stride, groups=layer.groups
    )


def test_cnn4_equals_its_definition() -> None:
    """bconv - BN - hardtanh - pool, one by one."""
    model = build_model(ModelSpec("cnn4", (1, 28, 28), 10), seed=3)
    scramble_norms(model)
    x = images(4, 1, 28, 28)
    with torch.no_grad():
        h = x
        for conv, norm in zip(model.convs, model.norms, strict=True):
            h = normalized(norm, binary_convolution(conv, h))
            h = F.max_pool2d(F.hardtanh(h), 2)
        expected = h.flatten(1) @ model.head.weight.t()
        out = deployed(model).eval()(x)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_a_binary_resnet_equals_its_definition() -> None:
    model = build_model(ModelSpec("resnet10", (3, 12, 12), 5, width=8), seed=4)
    scramble_norms(model)
    x = images(2, 3, 12, 12)
    with torch.no_grad():
        h = normalized(model.stem_norm, F.conv2d(x, model.stem.weight, padding=1))
        for block in model.blocks:
            short = h
            if not isinstance(block.shortcut, nn.Identity):
                conv, norm = block.shortcut
                short = normalized(norm, binary_convolution(conv, h))
            inner = normalized(block.norm1, binary_convolution(block.conv1, h))
            inner = binary_convolution(block.conv2, F.hardtanh(inner))
            h = F.hardtanh(normalized(block.norm2, inner) + short)
        pooled = normalized(model.head_norm, h.mean(dim=(2, 3))[:, :, None, None])
        expected = pooled[:, :, 0, 0] @ model.head.weight.t() + model.head.bias
        out = deployed(model).eval()(x)
    assert 0.1 < (h.abs() < 1).float().mean() < 0.9  # neither all clamped nor none
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_a_binary_convnext_block_equals_its_definition() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        block = ConvNeXtBlock(6, binary=True, options=None)
    scramble_norms(block)
    x = images(2, 6, 5, 5)
    with torch.no_grad():
        for conv in binary_layers(block).values():
            conv.bias.copy_(images(conv.out_channels, seed=7))
        h = normalized(block.depthwise_norm, binary_convolution(block.depthwise, x))
        mean, var = (
            h.mean(dim=1, keepdim=True),
            h.var(dim=1, keepdim=True, correction=0),
        )
        h = (h - mean) / (var + 1e-6).sqrt()
        h = normalized(block.expand_norm, binary_convolution(block.expand, h))
        h = normalized(block.reduce_norm, binary_convolution(block.reduce, h))
        out = deployed(block).eval()(x)
        torch.testing.assert_close(out, x + 0.1 * h, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("binary", [True, False])
def test_pooling_before_the_norm_is_an_option(binary: bool) -> None:
    spec = ModelSpec("cnn4", (1, 28, 28), 10, binary=binary, pool_before_bn=True)
    model = build_model(spec, seed=5)
    sides: list[int] = []
    for norm in model.norms:
        norm.register_forward_hook(lambda _m, _i, out: sides.append(out.shape[-1]))
    model(images(2, 1, 28, 28))
    assert sides == [14, 7, 3, 1]


def test_a_float_first_convolution_is_an_option() -> None:
    model = build_model(ModelSpec("cnn4", (1, 28, 28), 10, float_first=True))
    assert isinstance(model.convs[0], nn.Conv2d)
    assert list(binary_layers(model)) == ["convs.1", "convs.2", "convs.3"]


def test_width_scales_the_resnets() -> None:
    spec = ModelSpec("resnet10", (3, 32, 32), 10, binary=False, width=11)
    shapes = [p.shape[0] for n, p in on_meta(spec).named_parameters() if "conv2" in n]
    assert shapes == [11, 22, 44, 88]


def test_options_reach_every_binary_layer() -> None:
    options = BinaryOptions(activation="per-sample", rotation_iterations=7)
    for name in MODELS:
        model = on_meta(ModelSpec(name, (3, 32, 32), 10, options=options))
        layers = binary_layers(model).values()
        assert all(layer.options is options for layer in layers)


def test_the_float_twin_starts_with_small_weights() -> None:
    model = build_model(ModelSpec("cnn4", (1, 28, 28), 10, binary=False), seed=6)
    weights = np.concatenate([c.weight.detach().numpy().ravel() for c in model.convs])
    assert weights.std() == pytest.approx(0.01, rel=0.01)
    assert weights.mean() == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("name", ["cnn4", "resnet10"])
def test_a_seed_fixes_the_weights_without_side_effects(name: str) -> None:
    spec = ModelSpec(name, (1, 16, 16), 10, width=16)
    before = torch.get_rng_state()
    one, two, other = (build_model(spec, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    for name_, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name_])
    assert not torch.equal(one.head.weight, other.head.weight)


def test_channel_layer_norm_normalizes_each_position() -> None:
    x = images(2, 6, 3, 5)
    norm = ChannelLayerNorm(6, eps=1e-6)
    values = x.numpy()
    mean, var = values.mean(axis=1, keepdims=True), values.var(axis=1, keepdims=True)
    expected = (values - mean) / np.sqrt(var + 1e-6)
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, atol=1e-5)


def test_layer_norm_takes_the_signs_of_its_exact_values() -> None:
    norm = ChannelLayerNorm(96, eps=1e-6).eval()
    for seed in range(200):
        x = images(1, 96, 1, 1, seed=seed) * 5 + 2
        wide = x.flatten().numpy().astype(np.longdouble)
        centred = wide - wide.mean()
        variance = (centred**2).mean() + np.longdouble(np.float32(1e-6))
        normal = centred / np.sqrt(variance)
        # Every value is what rounding beta leaves over, some 1e-8 on either side of 0.
        beta = -normal.astype(np.float32)
        with torch.no_grad():
            norm.bias.copy_(torch.from_numpy(beta))
            actual = norm(x).flatten().numpy()
        np.testing.assert_array_equal(actual < 0, normal + beta < 0)


def test_a_stem_takes_the_signs_of_its_exact_sums() -> None:
    stem = blocks.stem(3, 500, 3, binary=True)
    x = images(1, 3, 3, 3, seed=1)
    weight = stem.weight.detach().numpy().astype(np.longdouble)
    exact = (weight * x[0].numpy()).sum(axis=(1, 2, 3))
    bias = -exact.astype(np.float32)
    with torch.no_grad():
        stem.bias.copy_(torch.from_numpy(bias))
        trained = stem(x).flatten().numpy()
        actual = stem.eval()(x).flatten().numpy()
    np.testing.assert_array_equal(actual < 0, exact + bias < 0)
    np.testing.assert_allclose(trained, actual, atol=1e-6)


def test_an_unknown_model_is_named_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"'vgg'.*cnn4.*convnext-tiny"):
        build_model(ModelSpec("vgg", (3, 32, 32), 10))


def test_a_model_needs_two_classes() -> None:
    with pytest.raises(ConfigError, match="got 1"):
        build_model(ModelSpec("cnn4", (3, 32, 32), 1))


@pytest.mark.parametrize("shape", [(1, 15, 28), (1, 28, 8)])
def test_cnn4_refuses_images_that_it_cannot_halve(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="at least 16x16"):
        build_model(ModelSpec("cnn4", shape, 10))


@pytest.mark.parametrize("groups", [1, 3])
def test_strided_pointwise_float_convolution_equals_the_pixels_product(
    groups: int,
) -> None:
    torch.manual_seed(0)
    layer = convolution(6, 12, 1, stride=2, groups=groups, bias=True, binary=False)
    assert isinstance(layer, nn.Conv2d)
    assert set(layer.state_dict()) == {"weight", "bias"}
    x = torch.randn(2, 6, 7, 6)
    pixels = x[:, :, ::2, ::2].unflatten(1, (groups, 6 // groups))
    weight = layer.weight[:, :, 0, 0].unflatten(0, (groups, 12 // groups))
    product = torch.einsum("ngchw,goc->ngohw", pixels, weight).flatten(1, 2)
    assert layer.bias is not None
    torch.testing.assert_close(layer(x), product + layer.bias[:, None, None])


def test_float_convolutions_of_enough_channels_are_torchs_own() -> None:
    """So that runs of the published widths keep their bits."""
    assert type(convolution(8, 16, 1, stride=2, binary=False)) is nn.Conv2d
    assert type(convolution(4, 8, 1, binary=False)) is nn.Conv2d
    assert type(convolution(4, 8, 1, stride=2, binary=False)) is not nn.Conv2d

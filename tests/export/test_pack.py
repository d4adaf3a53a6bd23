"""Packed networks against their torch simulation."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedbnn_core.binary.model import begin_epoch, begin_round, binary_layers, deployed
from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.binary.surrogate import Sharpness
from fedbnn_core.data import Dataset, load_dataset
from fedbnn_core.data.batches import normalize
from fedbnn_core.errors import ConfigError, DataError
from fedbnn_core.export.pack import export_packed, pack
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.packed import PackedModel, available_kernels
from fedbnn_core.packed.encode import encode

CLASSES = 10
NETWORKS = [
    ("cnn4", (1, 28, 28), {}),
    ("cnn4", (3, 32, 32), {"pool_before_bn": True}),
    ("cnn4", (3, 19, 17), {"float_first": True}),
    ("cnn4", (1, 16, 16), {"float_first": True, "pool_before_bn": True}),
    ("resnet10", (3, 32, 32), {}),
    ("resnet10", (1, 1, 1), {"width": 11}),
    ("resnet18", (3, 9, 14), {"width": 13}),
    ("resnet18", (3, 28, 28), {}),
    ("convnext-tiny", (3, 8, 8), {}),
    ("convnext-tiny", (1, 9, 8), {}),
]


def network(name: str, shape: tuple[int, int, int], **options: Any) -> nn.Module:
    """Return a deployed network whose every number is random, zeros included."""
    model = build_model(ModelSpec(name, shape, CLASSES, **options), seed=0)
    generator = torch.Generator().manual_seed(1)

    def normal(like: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(like.shape, generator=generator) * scale

    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.weight.copy_(normal(module.weight))
                module.weight[::7] = 0.0
                module.bias.copy_(normal(module.bias, 0.3))
                module.bias[::5] = 0.0
                # Whole means: with beta = 0 the result is exactly 0 at a sum.
                mean = normal(module.running_mean, 4).round()
                module.running_mean.copy_(mean)
                variance = torch.rand(mean.shape, generator=generator)
                module.running_var.copy_(variance * 90 + 1)
            elif isinstance(module, nn.LayerNorm):
                module.weight.copy_(normal(module.weight))
                module.bias.copy_(normal(module.bias, 0.1))
        for layer in binary_layers(model).values():
            layer.weight.copy_(normal(layer.weight))
            layer.weight[0] = 0.0  # sign(0) is +1
            if layer.bias is not None:
                layer.bias.copy_(normal(layer.bias))
    return deployed(model).eval()


def packed(model: nn.Module, shape: tuple[int, int, int], **options: Any) -> bytes:
    graph = pack(
        model,
        class_names=[str(label) for label in range(CLASSES)],
        mean=[0.286],
        std=[0.353],
        input_shape=shape,
        **options,
    )
    return encode(graph)


def simulated_sums(model: nn.Module, images: torch.Tensor) -> dict[str, np.ndarray]:
    """Return what every binary convolution yields, before its bias, as (n, h, w, c)."""
    sums: dict[str, np.ndarray] = {}

    def keep(name: str) -> Any:
        def hook(layer: Any, _: Any, output: torch.Tensor) -> None:
            if layer.bias is not None:
                output = (output - layer.bias[:, None, None]).round()
            sums[name] = output.permute(0, 2, 3, 1).numpy()

        return hook

    hooks = [
        layer.register_forward_hook(keep(name))
        for name, layer in binary_layers(model).items()
    ]
    with torch.no_grad():
        model(images)
    for handle in hooks:
        handle.remove()
    return sums


def packed_order(names: list[str]) -> list[str]:
    """Return the layers in the file's order: a block's shortcut before its conv2."""
    return sorted(
        names,
        key=lambda name: (
            names.index(name.replace("shortcut.0", "conv2"))
            - (0.5 if "shortcut" in name else 0)
        ),
    )


def assert_packed_agrees(
    model: nn.Module, shape: tuple[int, int, int], raw: torch.Tensor
) -> None:
    """Compare every binary sum of every image, and the logits.

    All kernels get one image; the fastest gets all of them.
    """
    data = packed(model, shape)
    images = normalize(raw, [0.286] * shape[0], [0.353] * shape[0])
    sums = simulated_sums(model, images)
    with torch.no_grad():
        logits = model(images).numpy()
    for kernel in available_kernels():
        runtime = PackedModel(data, kernel=kernel)
        for number in range(len(raw)) if kernel == available_kernels()[0] else (3,):
            found = runtime.preactivations(raw[number].numpy(), layout="NCHW")
            layers = packed_order(list(sums))
            for index, layer in zip(sorted(found), layers, strict=True):
                expected = sums[layer][number]
                np.testing.assert_array_equal(found[index], expected, err_msg=layer)
        for batch in (raw[:1], raw):
            actual = runtime.logits(batch.numpy(), layout="NCHW")
            tolerance = 1e-4 * np.abs(logits).max()
            np.testing.assert_allclose(actual, logits[: len(batch)], atol=tolerance)


@pytest.mark.parametrize(("name", "shape", "options"), NETWORKS)
def test_simulated_and_packed_networks_agree(
    name: str, shape: tuple[int, int, int], options: dict[str, Any]
) -> None:
    raw = torch.randint(
        0,
        256,
        (7, *shape),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(2),
    )
    assert_packed_agrees(network(name, shape, **options), shape, raw)


@pytest.mark.parametrize(
    ("name", "side", "width"),
    [
        ("cnn4", 28, 64),
        ("resnet10", 28, 32),
        ("resnet18", 28, 32),
        ("convnext-tiny", 8, 64),
    ],
)
def test_trained_networks_agree(name: str, side: int, width: int) -> None:
    """Real batch norms and rotated weights, from some steps of SGD."""
    data, shape = load_dataset("fmnist-mini"), (1, side, side)
    cut = slice((28 - side) // 2, (28 + side) // 2)
    pixels = torch.from_numpy(np.array(data.x_train[:71, :, cut, cut]))
    labels = torch.from_numpy(np.array(data.y_train[:64]))
    images = normalize(pixels[:64], [0.286], [0.353])
    spec = ModelSpec(name, shape, CLASSES, width=width)
    model = build_model(spec, seed=0).train()
    begin_round(model)
    begin_epoch(model, Sharpness.at(0, 10, 0, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {key: layer.r1.clone() for key, layer in binary_layers(model).items()}
    for x, y in zip(images.split(16), labels.split(16), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert all(not torch.equal(r1, torch.eye(len(r1))) for r1 in before.values())
    assert_packed_agrees(model.eval(), shape, pixels[64:])


# The paper's rule: weights / 8 + 4 bytes for every other parameter, plus 2 %.
@pytest.mark.parametrize(
    ("name", "shape", "classes", "limit"),
    [
        ("cnn4", (1, 28, 28), 10, 62_500),
        ("cnn4", (3, 32, 32), 10, 93_300 * 1.02),
        ("resnet10", (3, 32, 32), 10, 665_900 * 1.02),
        ("resnet18", (3, 64, 64), 200, 1_854_500 * 1.02),
        ("convnext-tiny", (3, 32, 32), 10, 4_103_300 * 1.02),
    ],
)
def test_file_sizes(
    name: str, shape: tuple[int, int, int], classes: int, limit: float, tmp_path: Any
) -> None:
    model = deployed(build_model(ModelSpec(name, shape, classes), seed=0))
    data = Dataset(
        "sizes",
        np.zeros((0, *shape), np.uint8),
        np.zeros(0, np.int64),
        np.zeros((0, *shape), np.uint8),
        np.zeros(0, np.int64),
        tuple(f"class number {label}" for label in range(classes)),
        (0.5,) * shape[0],
        (0.25,) * shape[0],
    )
    size = export_packed(model, data, tmp_path / "model.fbnn")
    assert size == (tmp_path / "model.fbnn").stat().st_size
    assert size <= limit


def test_int8_head_is_smaller_and_close() -> None:
    shape = (1, 28, 28)
    model = network("cnn4", shape)
    plain, small = packed(model, shape), packed(model, shape, int8_head=True)
    assert len(small) < 55_000 < len(plain)
    images = np.random.default_rng(0).integers(0, 256, (50, *shape), dtype=np.uint8)
    expected = PackedModel(plain).logits(images)
    actual = PackedModel(small).logits(images)
    # Half a step of each of the 256 weights, times activations of at most 1.
    weight = model.head.weight.detach().abs().amax(dim=1).numpy()
    assert (np.abs(actual - expected) <= 256 * weight / 254 + 1e-4).all()


def test_what_cannot_be_packed_is_refused_with_a_reason() -> None:
    shape = (1, 28, 28)
    about = {"class_names": ["a"] * 10, "mean": [0], "std": [1], "input_shape": shape}
    twin = build_model(ModelSpec("cnn4", shape, CLASSES, binary=False))
    with pytest.raises(ConfigError, match="float twin"):
        pack(twin, **about)
    options = BinaryOptions(activation="per-sample")
    sampled = build_model(ModelSpec("cnn4", shape, CLASSES, options=options))
    with pytest.raises(ConfigError, match='activation = "static"'):
        pack(sampled, **about)
    with pytest.raises(ConfigError, match="Linear: it has no binary convolution"):
        pack(nn.Linear(2, 2), **about)
    with pytest.raises(ConfigError, match="10 classes apart and the data has 9"):
        pack(network("cnn4", shape), **about | {"class_names": ["a"] * 9})
    with pytest.raises(ConfigError, match=r"no packed form|cannot be followed"):
        pack(network("cnn4", shape), **about | {"input_shape": (3, 28, 28)})
    coloured = network("cnn4", (3, 28, 28))
    for key in ("mean", "std"):
        wrong = about | {key: [0.5, 0.5], "input_shape": (3, 28, 28)}
        with pytest.raises(ConfigError, match=f"{key} has 2 numbers .* 3 channels"):
            pack(coloured, **wrong)


def test_export_leaves_the_model_as_it_was() -> None:
    model = network("cnn4", (1, 28, 28)).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    packed(model, (1, 28, 28))
    assert model.training
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(
    ("name", "count", "width"),
    [
        ("cnn4", 10_000, 64),
        ("resnet10", 300, 64),
        ("resnet10", 10_000, 8),
        ("resnet18", 100, 64),
        ("resnet18", 10_000, 16),
        ("convnext-tiny", 40, 64),
        # More than a quarter of an hour: pytest -m deploy tests/export/test_pack.py
        *(
            pytest.param(name, 10_000, 64, marks=pytest.mark.deploy)
            for name in ("resnet10", "resnet18", "convnext-tiny")
        ),
    ],
)
def test_logits_of_fashion_mnist_are_the_same(
    name: str, count: int, width: int
) -> None:
    """Compare on the test images; a ResNet's full width is 64."""
    try:
        data = load_dataset("fmnist")
    except DataError as error:
        pytest.skip(str(error))
    shape = (1, 28, 28)
    model = network(name, shape, width=width)
    graph = pack(
        model,
        class_names=data.class_names,
        mean=data.mean,
        std=data.std,
        input_shape=shape,
    )
    images = np.array(data.x_test[:count])
    assert len(images) == count
    with torch.no_grad():
        expected = np.concatenate(
            [
                model(normalize(torch.from_numpy(part), data.mean, data.std)).numpy()
                for part in np.split(images, max(20, count // 100))
            ]
        )
    actual = PackedModel(encode(graph)).logits(images, layout="NCHW")
    np.testing.assert_array_equal(actual.argmax(axis=1), expected.argmax(axis=1))
    # Only the classifier's sum rounds differently: no bit may have flipped.
    np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max())

"""Networks that are not ours: each small module against its own forward pass."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedbnn_core as fb
from fedbnn_core.binary.memory_layout import hardtanh, pixel_mean, subsample
from fedbnn_core.binary.model import begin_epoch
from fedbnn_core.binary.surrogate import Sharpness
from fedbnn_core.data.batches import normalize
from fedbnn_core.errors import ExportError
from fedbnn_core.export.pack import check_exportable, pack
from fedbnn_core.packed.encode import encode
from fedbnn_core.packed.graph import Kind

SHAPE = (3, 8, 9)
CLASSES = 4


def binary(channels: int = 8, out: int = 8, kernel: int = 3, **options: Any) -> Any:
    options = {"padding": kernel // 2} | options
    return fb.BinaryConv2d(channels, out, kernel, **options)


def stem() -> nn.Sequential:
    return nn.Sequential(fb.StemConv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8))


class Net(nn.Module):
    """A float stem, a body of 8 channels, the mean of pixels and a linear head."""

    def __init__(self, body: Callable[["Net", Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.stem, self.head = stem(), nn.Linear(8, CLASSES)
        self.body = body
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(pixel_mean(self.body(self, self.stem(x))))


def randomized(net: nn.Module, seed: int = 0) -> nn.Module:
    """Give a network numbers as training could: mixed signs, gamma 0, rotations."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.5 if parameter.ndim else parameter)
        for part in net.modules():
            if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
                noise = torch.randn(part.num_features, generator=generator)
                part.running_mean.copy_((noise * 2).round())
                part.running_var.copy_(noise.square() * 20 + 0.5)
                if part.weight is not None:
                    part.weight[::5] = 0.0
    begin_epoch(net, Sharpness(1.0))
    return net.eval()


def assert_agrees(
    net: nn.Module, shape: tuple[int, int, int] = SHAPE, count: int = 32
) -> list[Kind]:
    """Compare packed and torch logits; return the packed operations."""
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    mean, std = [0.4, 0.5, 0.45][: shape[0]], [0.2, 0.25, 0.3][: shape[0]]
    randomized(net)
    graph = pack(
        net,
        class_names=[str(label) for label in range(CLASSES)],
        mean=mean,
        std=std,
        input_shape=shape,
    )
    with torch.no_grad():
        expected = net(normalize(torch.from_numpy(raw), mean, std)).numpy()
    actual = fb.PackedModel(encode(graph)).logits(raw, layout="NCHW")
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(actual, expected, atol=2e-5 * np.abs(expected).max())
    return [op.kind for op in graph.operations]


def sequence(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(*parts)


NORM = nn.BatchNorm2d
BODIES: dict[str, tuple[Callable[[Net, Tensor], Tensor], dict[str, Any]]] = {
    "conv and norm": (lambda n, x: n.b(n.a(x)), {"a": binary(), "b": NORM(8)}),
    "residual": (
        lambda n, x: F.hardtanh(x + n.b(n.a(x))),
        {"a": binary(), "b": NORM(8)},
    ),
    "added to itself": (lambda n, x: n.a(x + x), {"a": binary()}),
    "two branches": (
        lambda n, x: torch.add(n.c(n.a(x)), n.d(n.b(x))).clamp(-1, 1),
        {"a": binary(), "b": binary(kernel=1), "c": NORM(8), "d": NORM(8)},
    ),
    "two branches without norms": (
        lambda n, x: n.a(x) + n.b(x),
        {"a": binary(), "b": binary(kernel=1)},
    ),
    "norm behind a residual": (
        lambda n, x: n.c(n.b(n.a(x) + x)),
        {"a": binary(), "b": NORM(8), "c": binary()},
    ),
    "residual of a norm read twice": (
        lambda n, x: (lambda h: h + n.c(h))(n.b(n.a(x))),
        {"a": binary(), "b": NORM(8), "c": binary()},
    ),
    "signs only, pooled behind the norm": (
        lambda n, x: n.c(F.max_pool2d(n.b(n.a(x)), 2)),
        {"a": binary(), "b": NORM(8), "c": binary()},
    ),
    "signs only, pooled before the norm": (
        lambda n, x: n.c(n.b(F.max_pool2d(n.a(x), 3, stride=2))),
        {"a": binary(), "b": NORM(8), "c": binary()},
    ),
    "signs only, pooled between norms": (
        lambda n, x: n.d(n.c(F.max_pool2d(n.b(n.a(x)), 2))),
        {"a": binary(), "b": NORM(8), "c": NORM(8), "d": binary()},
    ),
    "signs only, pooled twice around a norm": (
        lambda n, x: n.d(F.max_pool2d(n.c(F.max_pool2d(n.b(n.a(x)), 2)), (1, 2), 1)),
        {"a": binary(), "b": NORM(8), "c": NORM(8), "d": binary()},
    ),
    "signs only, clamp between norms": (
        lambda n, x: n.d(n.c(hardtanh(n.b(n.a(x))))),
        {"a": binary(), "b": NORM(8), "c": NORM(8), "d": binary()},
    ),
    "signs without a norm": (lambda n, x: n.b(n.a(x)), {"a": binary(), "b": binary()}),
    "bias, scale and norm, signs": (
        lambda n, x: n.c(n.b(n.a(x))),
        {"a": binary(bias=True, scale=True), "b": NORM(8), "c": binary()},
    ),
    "bias, scale and norm, floats": (
        lambda n, x: n.b(n.a(x)),
        {"a": binary(bias=True, scale=True), "b": NORM(8)},
    ),
    "depthwise and layer norm": (
        lambda n, x: n.c(n.b(n.a(x))),
        {
            "a": binary(groups=8, bias=True),
            "b": fb.ChannelLayerNorm(8),
            "c": binary(kernel=1),
        },
    ),
    "layer scale": (
        lambda n, x: x + n.scale[:, None, None] * n.b(n.a(x)),
        {"a": binary(), "b": NORM(8), "scale": nn.Parameter(torch.ones(8))},
    ),
    "constants": (
        lambda n, x: 0.5 * n.a(x) + n.shift[:, None, None] + 0.25,
        {"a": binary(), "shift": nn.Parameter(torch.ones(8))},
    ),
    "hardtanh behind a layer norm": (
        lambda n, x: n.b(n.act(n.a(x))),
        {"a": fb.ChannelLayerNorm(8), "act": nn.Hardtanh(), "b": binary()},
    ),
    "subsampled residual": (
        lambda n, x: n.b(n.a(x)) + subsample(x, 2),
        {"a": binary(stride=2), "b": NORM(8)},
    ),
    "norm without parameters": (
        lambda n, x: n.b(n.a(x)),
        {"a": binary(), "b": NORM(8, affine=False)},
    ),
    "dropout and identity": (
        lambda n, x: n.c(n.d(n.b(n.i(n.a(x))))),
        {
            "a": binary(),
            "b": NORM(8),
            "c": binary(),
            "d": nn.Dropout(),
            "i": nn.Identity(),
        },
    ),
    "in place": (
        lambda n, x: operator.iadd(n.b(n.a(x)), x).clamp_(-1, 1),
        {"a": binary(), "b": NORM(8)},
    ),
    "same layer twice": (lambda n, x: n.a(n.a(x)), {"a": binary()}),
    "nested": (
        lambda n, x: n.a(x),
        {"a": sequence(binary(), sequence(NORM(8), nn.Hardtanh()), binary())},
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_packed_logits_are_those_of_torch(name: str) -> None:
    body, parts = BODIES[name]
    assert_agrees(Net(body, **parts))


@pytest.mark.parametrize(
    "ending",
    [
        lambda: [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)],
        lambda: [nn.AvgPool2d((4, 4)), nn.Flatten(), nn.Linear(8, CLASSES)],
        lambda: [nn.Flatten(), nn.Linear(128, CLASSES, bias=False)],
        lambda: [
            nn.Hardtanh(),
            nn.Flatten(),
            nn.Linear(128, 6),
            nn.BatchNorm1d(6),
            nn.Hardtanh(),
            nn.Linear(6, CLASSES),
        ],
        lambda: [
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.LayerNorm(8),
            nn.Linear(8, CLASSES),
        ],
        lambda: [
            nn.Conv2d(8, CLASSES, 3, padding="same"),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ],
    ],
)
def test_heads(ending: Callable[[], list[nn.Module]]) -> None:
    parts = [stem(), binary(), nn.MaxPool2d(2), nn.BatchNorm2d(8), *ending()]
    assert_agrees(nn.Sequential(*parts), (3, 8, 8))


def test_only_signs_travel_between_binary_layers() -> None:
    """Norm, pooling and hardtanh cost one integer comparison and an OR."""
    net = nn.Sequential(
        binary(3),
        nn.BatchNorm2d(8),
        nn.MaxPool2d(2),
        nn.Hardtanh(),
        binary(8, CLASSES),
        nn.BatchNorm2d(CLASSES),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    kinds = assert_agrees(net)
    assert kinds == [Kind.INPUT, Kind.BCONV, Kind.BITPOOL, Kind.BCONV, Kind.MEAN]


class Refused(nn.Module):
    """Everything that no packed file can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, dilation=1, groups=1)
        self.act = nn.ReLU()
        self.grouped = binary(groups=2)
        self.sampled = binary(options=fb.BinaryOptions(activation="per-sample"))
        self.average = nn.AvgPool2d(2)
        self.hooked = nn.BatchNorm2d(8)
        self.hooked.register_forward_hook(lambda *_: None)
        self.tanh = nn.Hardtanh(0.0, 6.0)
        self.inner = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8, padding=1))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.grouped(self.act(self.stem(x)))
        x = self.hooked(self.average(self.sampled(x)))
        x = F.gelu(self.inner(self.tanh(x)))
        return self.head(torch.cat([x[:, :4], x[:, 4:]], dim=1).mean((2, 3)))


def test_all_that_is_in_the_way_is_named_at_once() -> None:
    net = Refused().train()
    with pytest.raises(ExportError) as error:
        check_exportable(net, SHAPE)
    assert net.hooked.training
    expected = [
        r"act (ReLU): the only non-linearity",
        r"grouped (RotatedBinaryConv2d): groups must be 1",
        r"sampled (RotatedBinaryConv2d): it standardizes every sample",
        r"average (AvgPool2d): only the mean over all pixels",
        r"hooked (BatchNorm2d): it has forward hooks",
        r"tanh (Hardtanh): a clamp must be that to [-1, 1]",
        r"inner.0 (Conv2d): grouped float convolutions",
        r"gelu() in the network's forward: the only non-linearity",
        r"cat() in the network's forward: it has no packed form",
    ]
    problems = error.value.problems
    for start in expected:
        assert any(problem.startswith(start) for problem in problems), start
    assert all(problem in str(error.value) for problem in problems)


class Doubled(nn.Conv2d):
    """A convolution of one's own, which must not pass for torch's."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(2 * input)


@pytest.mark.parametrize(
    ("body", "parts", "reason"),
    [
        (lambda n, x: n.a(x) * x, {}, r"mul\(\) in .*product of two"),
        (lambda n, x: n.a(F.pad(x, (1, 1, 1, 1))), {}, "zeros around an image"),
        (lambda n, x: n.a(x) if x.sum() > 0 else x, {}, "cannot be followed"),
        (lambda n, x: n.a(x) + n.a(x).relu(), {}, r"relu\(\) in .*hardtanh"),
        (
            lambda n, x: (n.a(x).clamp_(-1, 1), x)[1],
            {},
            r"clamp_\(\) in .*: it overwrites",
        ),
        (lambda n, x: n.b(n.a(x)), {"b": Doubled(8, 8, 1)}, "conv2d"),
        (lambda n, x: n.b(n.a(x)), {"b": nn.LayerNorm([8, 8, 9])}, r"b \(LayerNorm\)"),
        (
            lambda n, x: n.b(n.a(x)),
            {"b": nn.BatchNorm2d(8, track_running_stats=False)},
            "no running statistics",
        ),
        (lambda n, x: n.b(n.a(x)), {"b": binary(9)}, "9 channels expected"),
        (lambda n, x: n.b(n.a(x)), {"b": nn.MaxPool2d(3, padding=1)}, "no padding"),
    ],
)
def test_what_cannot_be_exported_says_why(
    body: Callable[[Net, Tensor], Tensor], parts: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ExportError, match=reason):
        check_exportable(Net(body, a=binary(), **parts), SHAPE)


def test_a_float_network_and_a_feature_map_are_refused() -> None:
    with pytest.raises(ExportError, match=r"Linear: it has no binary convolution"):
        check_exportable(nn.Linear(2, 2), SHAPE)
    with pytest.raises(ExportError, match=r"output: it must be one tensor of logits"):
        check_exportable(nn.Sequential(binary(3)), SHAPE)
    with pytest.raises(ExportError, match=r"output: it must be one tensor of logits"):
        check_exportable(nn.Sequential(binary(3), nn.Flatten()), SHAPE)

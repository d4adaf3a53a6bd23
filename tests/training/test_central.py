"""Central training: what is trained is what is exported."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedbnn_core as fb
from fedbnn_core.binary.model import binary_layers
from fedbnn_core.data.batches import normalize
from fedbnn_core.errors import RunError


@pytest.fixture(scope="module")
def stripes() -> fb.Dataset:
    """Two classes that one pixel of each image tells apart, under noise."""
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 2
    images = rng.integers(60, 120, (400, 1, 16, 16), dtype=np.uint8)
    images[labels == 1, :, ::2] += 100
    images[labels == 0, :, :, ::2] += 100
    return fb.Dataset(
        "stripes",
        images[:300],
        labels[:300],
        images[300:],
        labels[300:],
        ("down", "across"),
        (0.5,),
        (0.2,),
    )


class Own(nn.Module):
    """A user's network: a residual block, in no style of ours."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.stem = fb.StemConv2d(1, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.conv = fb.BinaryConv2d(8, 8, 3, padding=1, **options)
        self.after = nn.BatchNorm2d(8)
        self.act = nn.Hardtanh()
        self.head = nn.Linear(8 * 8 * 8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        x = self.act(self.after(self.conv(x)) + x)
        return self.head(nn.functional.max_pool2d(x, 2).reshape(x.size(0), -1))


def logits(net: nn.Module, data: fb.Dataset) -> np.ndarray:
    images = normalize(torch.from_numpy(np.array(data.x_test)), data.mean, data.std)
    with torch.no_grad():
        return net(images).numpy()


@pytest.mark.cpu_settings
@pytest.mark.parametrize("kind", ["cnn4", "resnet10", "own"])
def test_the_exported_file_computes_what_was_trained(
    kind: str,
    stripes: fb.Dataset,
    tmp_path: Path,
    training_seed: int,
    margin: Callable[[float], None],
) -> None:
    torch.manual_seed(training_seed)
    build = partial(fb.build_model, kind, stripes, width=8, seed=training_seed)
    net = Own() if kind == "own" else build()
    fb.check_exportable(net, stripes)
    steps = {"epochs": 3, "lr": 0.1, "batch_size": 32, "seed": training_seed}
    history = fb.fit(net, stripes, **steps)
    assert [result.epoch for result in history.epochs] == [1, 2, 3]
    margin(1 - history.losses[-1] / history.losses[0])
    assert not net.training
    size = fb.export_packed(net, stripes, tmp_path / "model.fbnn")
    packed = fb.PackedModel.load(tmp_path / "model.fbnn")
    assert packed.size_bytes == size
    assert packed.class_names == ["down", "across"]
    expected, actual = logits(net, stripes), packed.logits(stripes.x_test)
    np.testing.assert_array_equal(packed.predict(stripes.x_test), expected.argmax(1))
    np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max())


def test_all_test_images_of_fmnist_mini_agree(tmp_path: Path) -> None:
    data = fb.load_dataset("fmnist-mini")
    net = fb.build_model("cnn4", data)
    fb.fit(net, data, epochs=1, lr=0.1)
    fb.export_packed(net, data, tmp_path / "model.fbnn")
    expected = logits(net, data)
    actual = fb.PackedModel.load(tmp_path / "model.fbnn").logits(data.x_test)
    np.testing.assert_array_equal(actual.argmax(1), expected.argmax(1))
    np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max())


def test_scores_are_those_of_the_test_images(stripes: fb.Dataset) -> None:
    net = fb.build_model("cnn4", stripes).train()
    score = fb.evaluate(net, stripes)
    assert net.training
    values = logits(net.eval(), stripes).astype(np.float64)
    shares = np.exp(values) / np.exp(values).sum(axis=1, keepdims=True)
    chosen = shares[np.arange(100), stripes.y_test]
    assert score.accuracy == np.mean(values.argmax(1) == stripes.y_test)
    assert score.loss == pytest.approx(-np.log(chosen).mean(), rel=1e-5)


@pytest.mark.cpu_settings
def test_float_networks_are_trained_too(
    stripes: fb.Dataset, training_seed: int, margin: Callable[[float], None]
) -> None:
    torch.manual_seed(training_seed)
    twin = fb.build_model("cnn4", stripes, binary=False, seed=training_seed)
    own = nn.Sequential(nn.Flatten(), nn.Linear(256, 2))
    for net in (twin, own):
        steps = {"epochs": 3, "lr": 0.05, "batch_size": 32, "momentum": 0.5}
        history = fb.fit(net, stripes, **steps, seed=training_seed)
        margin(1 - history.losses[-1] / history.losses[0])


def test_every_epoch_is_a_round_with_its_own_sharpness(stripes: fb.Dataset) -> None:
    net = fb.build_model("cnn4", stripes)
    (layer, *_) = binary_layers(net).values()
    seen: list[tuple[float, Tensor, Tensor]] = []

    def note(result: fb.EpochResult) -> None:
        state = (layer.sharpness.t, layer.w_server.clone(), layer.weight.detach())
        seen.append((state[0], state[1], state[2].clone()))

    fb.fit(net, stripes, epochs=3, lr=0.1, on_epoch=note)
    # t = 10^(-2 + 3 e / E), the paper's schedule with an epoch as a round.
    assert [t for t, _, _ in seen] == pytest.approx([1e-2, 1e-1, 1.0])
    for (_, _, weight), (_, server, _) in pairwise(seen):
        torch.testing.assert_close(server, weight, rtol=0, atol=0)


def test_the_seed_fixes_the_result(stripes: fb.Dataset) -> None:
    def trained(seed: int) -> Tensor:
        net = fb.build_model("cnn4", stripes)
        fb.fit(net, stripes, epochs=1, lr=0.1, seed=seed)
        return next(iter(binary_layers(net).values())).weight.detach()

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


def test_deploy_keeps_the_function_and_the_state_dict_is_whole(
    stripes: fb.Dataset,
) -> None:
    net = fb.build_model("cnn4", stripes)
    fb.fit(net, stripes, epochs=2, lr=0.1)
    signs = fb.deploy(net)
    np.testing.assert_array_equal(logits(signs, stripes), logits(net, stripes))
    loaded = fb.deploy(fb.build_model("cnn4", stripes, seed=9))
    loaded.load_state_dict(signs.state_dict())
    np.testing.assert_array_equal(logits(loaded, stripes), logits(net, stripes))


def test_a_loss_without_end_is_reported(stripes: fb.Dataset) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(256, 2))
    wild = replace(stripes, std=(1e-30,), test_mean=(), test_std=())
    with pytest.raises(RunError, match="smaller lr than 1e"):
        fb.fit(net, wild, epochs=1, lr=1e30)

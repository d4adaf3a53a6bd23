"""Scores of packed networks against torch's forward pass, image by image."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.data.batches import normalize
from fedbnn_core.errors import ConfigError
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.packed import available_kernels
from fedbnn_core.server import scoring
from fedbnn_core.server.scoring import HeldOut, evaluate_packed

pytestmark = pytest.mark.skipif(
    available_kernels() == ("numpy",), reason="the C kernels are not built"
)

MEAN, STD = (0.4, 0.5, 0.3), (0.2, 0.3, 0.25)


def network(name="resnet10", *, binary=True, activation="static"):
    spec = ModelSpec(
        name=name,
        input_shape=(3, 32, 32),
        num_classes=4,
        binary=binary,
        width=8,
        options=BinaryOptions(activation=activation),
    )
    model = build_model(spec, seed=5).train()
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():  # norms take their statistics from some images
        for _ in range(20):
            model(torch.randn((16, 3, 32, 32), generator=generator))
    return model.eval()


@pytest.fixture(scope="module")
def held_out():
    generator = np.random.default_rng(2)
    images = generator.integers(0, 256, (61, 3, 32, 32), dtype=np.uint8)
    labels = generator.integers(0, 4, 61)
    return HeldOut(images, labels, MEAN, STD, num_classes=4)


@pytest.mark.parametrize("name", ["cnn4", "resnet10"])
def test_scores_are_those_of_the_torch_network(name, held_out):
    model = network(name)
    confusion, loss = np.zeros((4, 4), int), 0.0
    for image, label in zip(held_out.images, held_out.labels, strict=True):
        with torch.no_grad():
            logits = model(normalize(image[None], MEAN, STD))[0].double()
        confusion[label, int(logits.argmax())] += 1
        loss += float(F.cross_entropy(logits, label))
    assert (confusion.sum(axis=0) > 0).sum() > 1, "one class only would test little"

    result = evaluate_packed(model, held_out)
    np.testing.assert_array_equal(result.confusion, confusion)
    assert result.accuracy == pytest.approx(np.trace(confusion) / 61)
    assert result.loss == pytest.approx(loss / 61, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"binary": False}, "float"), ({"activation": "per-sample"}, "every sample")],
    ids=["float", "per-sample"],
)
def test_what_has_no_packed_form_is_told_with_the_reason(options, reason, held_out):
    with pytest.raises(ConfigError, match=reason):
        evaluate_packed(network(**options), held_out)


def test_a_diverged_network_is_told(held_out):
    model = network()
    with torch.no_grad():
        model.head.weight[0, 0] = float("nan")
    with pytest.raises(ConfigError, match="diverged"):
        evaluate_packed(model, held_out)


def test_without_kernels_the_reason_is_told(held_out, monkeypatch):
    monkeypatch.setattr(scoring, "available_kernels", lambda: ("numpy",))
    with pytest.raises(ConfigError, match="C kernels"):
        evaluate_packed(network(), held_out)

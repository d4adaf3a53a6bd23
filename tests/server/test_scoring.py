"""Evaluation against counts made image by image."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedbnn_core.server.scoring import HeldOut, evaluate


class Lookup(nn.Module):
    """Return logits that depend on the first pixel only."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def forward(self, x):
        return self.table[torch.round(x[:, 0, 0, 0] * 255).long()]


def held_out(pixels, labels, num_classes=3):
    images = np.zeros((len(pixels), 1, 2, 2), np.uint8)
    images[:, 0, 0, 0] = pixels
    return HeldOut(images, np.array(labels), (0.0,), (1.0,), num_classes=num_classes)


@pytest.mark.parametrize("batch_size", [1, 2, 7, 100])
def test_accuracy_loss_and_confusion(batch_size):
    generator = np.random.default_rng(3)
    table = torch.from_numpy(generator.normal(size=(5, 3)).astype(np.float32))
    pixels = generator.integers(0, 5, 41)
    labels = generator.integers(0, 3, 41)
    result = evaluate(Lookup(table), held_out(pixels, labels), batch_size=batch_size)

    confusion, loss = np.zeros((3, 3), int), 0.0
    for pixel, label in zip(pixels, labels, strict=True):
        logits = table[pixel].double().numpy()
        confusion[label, int(np.argmax(logits))] += 1
        loss += math.log(sum(math.exp(v) for v in logits)) - logits[label]
    assert np.array_equal(result.confusion, confusion)
    assert result.accuracy == pytest.approx(np.trace(confusion) / 41)
    assert result.loss == pytest.approx(loss / 41, rel=1e-5)


def test_a_class_that_does_not_occur_has_an_empty_row():
    result = evaluate(Lookup(torch.eye(3)), held_out([0, 1], [0, 1]))
    assert result.accuracy == 1.0
    assert result.confusion[2].tolist() == [0, 0, 0]


def test_no_images_give_nan():
    result = evaluate(Lookup(torch.eye(3)), held_out([], []))
    assert math.isnan(result.accuracy)
    assert math.isnan(result.loss)


def test_the_model_is_evaluated_in_eval_mode():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 3)).train()
    data = held_out([1, 2, 3], [0, 1, 2])
    assert evaluate(model, data).loss == evaluate(model, data).loss

"""Train and score a network on one machine, without a federation."""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbnn_core.binary.model import (
    begin_epoch,
    begin_round,
    binary_layers,
    deployed,
)
from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.binary.surrogate import Sharpness
from fedbnn_core.data.batches import ClientData, normalize
from fedbnn_core.data.dataset import Dataset
from fedbnn_core.errors import RunError
from fedbnn_core.networks.registry import ModelSpec
from fedbnn_core.networks.registry import build_model as build_network
from fedbnn_core.training.local import LocalTask, prefer_channels_last, train_locally

__all__ = [
    "EpochResult",
    "History",
    "Score",
    "build_model",
    "deploy",
    "evaluate",
    "fit",
]

_BATCH = 256


@dataclass(frozen=True)
class EpochResult:
    """What one epoch of `fit` did."""

    epoch: int
    """Counted from 1."""
    loss: float
    """Mean training loss."""
    seconds: float


@dataclass
class History:
    """The course of `fit`."""

    epochs: list[EpochResult] = field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        """Return the mean training loss of every epoch."""
        return [result.loss for result in self.epochs]


@dataclass(frozen=True)
class Score:
    """Result of `evaluate`."""

    accuracy: float
    """Share of images classified correctly, 0 to 1."""
    loss: float
    """Mean cross entropy."""


def build_model(
    name: str,
    data: Dataset,
    *,
    binary: bool = True,
    seed: int | None = 1,
    width: int = 64,
    pool_before_bn: bool = False,
    float_first: bool = False,
    options: BinaryOptions | None = None,
) -> nn.Module:
    """Return one of our networks for a dataset.

    Parameters
    ----------
    name : "cnn4", "resnet10", "resnet18" or "convnext-tiny".
    data : gives the image's shape and the number of classes.
    binary : False builds the float twin, with the same structure.
    seed : fixes the initial weights; None draws them from torch's global state.
    width : channels of a ResNet's first stage.
    pool_before_bn, float_first : CNN4's variants.
    options : how binary convolutions are trained.
    """
    spec = ModelSpec(
        name,
        data.input_shape,
        data.num_classes,
        binary=binary,
        width=width,
        pool_before_bn=pool_before_bn,
        float_first=float_first,
        options=options or BinaryOptions(),
    )
    return build_network(spec, seed=seed)


def fit(
    model: nn.Module,
    data: Dataset,
    *,
    epochs: int,
    lr: float,
    batch_size: int = 64,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    seed: int = 1,
    on_epoch: Callable[[EpochResult], None] | None = None,
) -> History:
    """Train a network on all training images with SGD, in place.

    Binary layers are those of a federation with one client and one epoch a round: each
    epoch begins with w_server = w and R at its start, learns R, and sets the surrogate
    gradient's sharpness for that share of the training. A w_server that stays what it
    was at the beginning mixes the initial weights into w~ for good: CNN4 on 3,000
    images of fmnist-mini, 5 epochs, then had 75.3, 70.7 and 76.2 % of the test images
    right (three seeds) instead of 76.3, 74.8 and 77.1 %.

    The mixed weights belong to the trained network: `export_packed` writes their signs,
    and `deploy` returns a copy whose state dict holds them. The state dict of ``model``
    itself holds the real weights only.

    Parameters
    ----------
    model : a binary network, a float twin, or any module that returns logits; it stays
        on its device and is left in evaluation mode.
    data : its training images are used, with its augmentation.
    epochs : passes over the training images; the sharpness is spread over all of them,
        so that training in two calls is not training in one.
    lr, batch_size, momentum, weight_decay : of SGD.
    seed : fixes the batches and their augmentation.
    on_epoch : called after every epoch, for example `print`.

    Raises
    ------
    RunError
        The loss is no longer finite.
    """
    history = History()
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    samples = ClientData.of(data, np.arange(len(data.y_train)), device=device)
    task = LocalTask(
        round_index=0,
        num_rounds=1,
        partition_id=0,
        seed=seed,
        local_epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
    )
    started = time.perf_counter()

    def start_epoch(epoch: int) -> None:
        begin_round(model)
        begin_epoch(model, Sharpness.at(epoch, epochs, 0, 1))

    def end_epoch(epoch: int, loss: float) -> None:
        nonlocal started
        if not math.isfinite(loss):
            raise RunError(
                f"the training loss of epoch {epoch + 1} is {loss}; choose a smaller "
                f"lr than {lr:g}"
            )
        now = time.perf_counter()
        history.epochs.append(EpochResult(epoch + 1, loss, now - started))
        started = now
        if on_epoch is not None:
            on_epoch(history.epochs[-1])

    train_locally(
        prefer_channels_last(model),
        samples,
        task,
        begin_epoch=start_epoch,
        after_epoch=end_epoch,
    )
    model.eval()
    return history


@torch.no_grad()
def evaluate(model: nn.Module, data: Dataset) -> Score:
    """Return what a network scores on the test images, in evaluation mode."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    right, loss = 0, 0.0
    try:
        for start in range(0, len(data.y_test), _BATCH):
            part = slice(start, start + _BATCH)
            pixels = torch.from_numpy(np.array(data.x_test[part])).to(device)
            labels = torch.from_numpy(np.array(data.y_test[part])).to(device)
            images = normalize(pixels, data.test_mean, data.test_std)
            logits: Tensor = model(images)
            right += int((logits.argmax(dim=1) == labels).sum())
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
    finally:
        for module, mode in modes.items():
            module.training = mode
    count = len(data.y_test) or math.nan
    return Score(accuracy=right / count, loss=loss / count)


@torch.no_grad()
def deploy(model: nn.Module) -> nn.Module:
    """Return a copy in the form that is deployed: its weights are the signs.

    It computes what ``model`` computes in evaluation mode, and its state dict is
    complete: load it into `deploy` of a network of the same structure.
    """
    result = copy.deepcopy(model).eval()
    for layer in binary_layers(result).values():
        layer.weight.copy_(layer.binary_weight())
    return deployed(result)

"""Accuracy and loss of a model on held-out images, packed or with PyTorch.

On a CPU the packed network is several times faster than torch's simulation of +-1
convolutions in float32, and it makes the metrics of a run those of the file it exports.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fedbnn_core.data.batches import normalize
from fedbnn_core.errors import ConfigError
from fedbnn_core.export.pack import pack
from fedbnn_core.packed import PackedModel, available_kernels
from fedbnn_core.packed.encode import encode
from fedbnn_core.packed.scores import confusion_counts

__all__ = [
    "Evaluation",
    "HeldOut",
    "evaluate",
    "evaluate_packed",
    "pack_for",
    "score",
    "score_packed",
]

_BATCH = 500


@dataclass(frozen=True)
class Evaluation:
    """What a model scored."""

    accuracy: float
    """Share of correctly classified images, 0 to 1."""
    loss: float
    """Mean cross-entropy."""
    confusion: NDArray[np.int64]
    """Counts (true class, predicted class)."""


class HeldOut:
    """Normalized held-out images on a device, prepared once for many evaluations."""

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64],
        mean: tuple[float, ...],
        std: tuple[float, ...],
        *,
        num_classes: int,
        device: str | torch.device = "cpu",
    ) -> None:
        self.images = torch.from_numpy(np.ascontiguousarray(images)).to(device)
        self.labels = torch.from_numpy(np.asarray(labels, dtype=np.int64)).to(device)
        self.mean, self.std, self.num_classes = mean, std, num_classes

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: str | torch.device) -> "HeldOut":
        """Return the same images on another device."""
        moved = copy.copy(self)
        moved.images, moved.labels = self.images.to(device), self.labels.to(device)
        return moved


@torch.inference_mode()
def evaluate(
    model: nn.Module, held_out: HeldOut, *, batch_size: int = _BATCH
) -> Evaluation:
    """Return what a network scores, see `score`; it is left in eval mode."""
    model.eval()

    def logits(images: Tensor) -> Tensor:
        result: Tensor = model(normalize(images, held_out.mean, held_out.std))
        return result

    return score(logits, held_out, batch_size=batch_size)


def evaluate_packed(model: nn.Module, held_out: HeldOut) -> Evaluation:
    """Return what the packed network scores.

    Raises
    ------
    FedBNNError
        PyTorch has to do it, and why: on a GPU, without the C kernels, for a network
        that has no packed form (a float twin, ``activation = "per-sample"``) and for
        one that has diverged.
    """
    device = held_out.images.device
    if device.type != "cpu":
        raise ConfigError(f"the images are on {device}, packed networks run on the CPU")
    if available_kernels() == ("numpy",):
        raise ConfigError("the C kernels of packed networks were not built here")
    content = pack_for(model, held_out, map(str, range(held_out.num_classes)))
    return score_packed(content, held_out)


def score_packed(content: bytes, held_out: HeldOut) -> Evaluation:
    """Return what an `.fbnn` file scores on held-out images in the CPU's memory."""
    packed = PackedModel(content, threads=torch.get_num_threads())

    def logits(images: Tensor) -> Tensor:
        return torch.from_numpy(packed.logits(images.numpy(), layout="NCHW"))

    return score(logits, held_out)


def pack_for(model: nn.Module, held_out: HeldOut, class_names: Iterable[str]) -> bytes:
    """Return a network as an `.fbnn` file for images like the held-out ones.

    Raises
    ------
    FedBNNError
        It has no packed form.
    """
    if not all(bool(t.isfinite().all()) for t in model.state_dict().values()):
        raise ConfigError("the network has diverged: it holds NaN or infinities")
    channels, height, width = held_out.images.shape[1:]
    graph = pack(
        model,
        class_names=list(class_names),
        mean=held_out.mean,
        std=held_out.std,
        input_shape=(channels, height, width),
    )
    return encode(graph)


def score(
    logits_of: Callable[[Tensor], Tensor],
    held_out: HeldOut,
    *,
    batch_size: int = _BATCH,
) -> Evaluation:
    """Return accuracy, loss and confusion counts.

    Without images accuracy and loss are NaN.

    Parameters
    ----------
    logits_of : makes logits (n, classes) of raw uint8 images (n, c, h, w).
    """
    classes = held_out.num_classes
    counts = np.zeros((classes, classes), np.int64)
    total_loss = 0.0
    for start in range(0, len(held_out), batch_size):
        labels = held_out.labels[start : start + batch_size]
        logits = logits_of(held_out.images[start : start + batch_size])
        total_loss += float(F.cross_entropy(logits, labels, reduction="sum"))
        predicted = logits.argmax(dim=1).cpu()
        counts += confusion_counts(labels.cpu(), predicted, classes)
    n = len(held_out)
    return Evaluation(
        accuracy=float(counts.trace()) / n if n else float("nan"),
        loss=total_loss / n if n else float("nan"),
        confusion=counts,
    )

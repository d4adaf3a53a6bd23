"""Score a binary network in the form in which it will be deployed.

On a CPU the packed network is several times faster than torch's simulation of +-1
convolutions in float32, and it makes the figures of a run those of the file it exports.
"""

import torch
from torch import Tensor, nn

from fedbnn_core.errors import FedBNNError
from fedbnn_core.export.pack import pack
from fedbnn_core.packed import PackedModel, available_kernels
from fedbnn_core.packed.encode import encode
from fedbnn_core.server.scoring import Evaluation, HeldOut, score

__all__ = ["evaluate_packed"]


def evaluate_packed(model: nn.Module, held_out: HeldOut) -> Evaluation | None:
    """Return what the packed network scores; None if torch has to do it.

    That is so on a GPU, without the C kernels, for a network that has no packed form
    (a float twin, ``activation = "per-sample"``) and for one that has diverged.
    """
    on_cpu = held_out.images.device.type == "cpu"
    if not on_cpu or available_kernels() == ("numpy",) or not _is_finite(model):
        return None
    channels, height, width = held_out.images.shape[1:]
    try:
        graph = pack(
            model,
            class_names=[str(label) for label in range(held_out.num_classes)],
            mean=held_out.mean,
            std=held_out.std,
            input_shape=(channels, height, width),
        )
        packed = PackedModel(encode(graph), threads=torch.get_num_threads())
    except FedBNNError:
        return None

    def logits(images: Tensor) -> Tensor:
        return torch.from_numpy(packed.logits(images.numpy(), layout="NCHW"))

    return score(logits, held_out)


def _is_finite(model: nn.Module) -> bool:
    return all(bool(t.isfinite().all()) for t in model.state_dict().values())

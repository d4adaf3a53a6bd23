"""What stays the same from a run's first round to its last."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedbnn_core import __version__
from fedbnn_core.config import RunConfig
from fedbnn_core.data import Dataset
from fedbnn_core.methods.base import Method
from fedbnn_core.runs.directory import RunDirectory
from fedbnn_core.server.validation import ReplyRules

__all__ = ["RunContext", "describe"]


@dataclass(frozen=True)
class RunContext:
    """Config, data, method and directory of a run."""

    config: RunConfig
    dataset: Dataset
    method: Method
    device: torch.device
    """Where the server evaluates."""
    examples: Mapping[int, int]
    """How many training images each client holds, by partition id."""
    rules: ReplyRules
    """What an acceptable reply looks like, whoever sent it."""
    directory: RunDirectory

    @property
    def num_partitions(self) -> int:
        """Into how many parts the training data is divided."""
        return len(self.examples)

    @property
    def partition_file(self) -> Path:
        """Where it is written who holds which sample."""
        return self.directory.path / "partition.npz"

    def rules_for(self, client: int, own_examples: int = 0) -> ReplyRules:
        """Return what an acceptable reply of a client looks like.

        None may say it has trained on more images than it holds, and so weigh more; in
        a private run all weigh the same.

        Parameters
        ----------
        client : its partition id.
        own_examples : images of its own that it holds instead of a part of the data.
        """
        held = own_examples or self.examples.get(client, 0)
        most = held if self.config.privacy == "none" else 1
        return replace(self.rules, max_examples=most)


def describe(context: RunContext) -> dict[str, Any]:
    """Return the content of ``config.json``."""
    dataset, method = context.dataset, context.method
    return {
        "config": context.config.to_mapping(),
        "num_partitions": context.num_partitions,
        "fedbnn_version": __version__,
        "torch_version": torch.__version__,
        "device": str(context.device),
        "method_title": method.title,
        "binary": method.binary,
        "train_images": len(dataset.y_train),
        "test_images": len(dataset.y_test),
        "input_shape": list(dataset.input_shape),
        "class_names": list(dataset.class_names),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
        "test_mean": list(dataset.test_mean),
        "test_std": list(dataset.test_std),
    }

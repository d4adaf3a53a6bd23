"""The parts of a report that need the run's dataset: partition and mistakes.

A report can be made where the dataset is not; it then says what is missing.
"""

import base64
import io
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbnn_core.data import (
    Dataset,
    class_counts,
    load_partition,
    split_test,
)
from fedbnn_core.errors import FedBNNError
from fedbnn_core.packed.scores import softmax
from fedbnn_core.runs.directory import PACKED_MODEL, RunDirectory

__all__ = [
    "HeldData",
    "held_data",
    "held_out_images",
    "pick_mistakes",
    "png_data_uri",
]

_log = logging.getLogger(__name__)

_MAX_CLIENTS = 400
_MAX_MISTAKES = 24
_BATCH = 500


@dataclass
class HeldData:
    """Who holds what, and which images the model got wrong."""

    clients: list[int] = field(default_factory=list)
    """The clients shown; all, or an even choice of many."""
    sizes: list[int] = field(default_factory=list)
    """Samples of each client shown."""
    counts: list[list[int]] | None = None
    """Samples of each client shown, by class."""
    total_clients: int = 0
    """How many clients there are."""
    mistakes: list[dict[str, Any]] | None = None
    """Image, true class, predicted class and the model's confidence."""
    notes: list[str] = field(default_factory=list)
    """What could not be shown, and why."""


def held_data(
    directory: RunDirectory, description: Mapping[str, Any], *, with_mistakes: bool
) -> HeldData:
    """Gather what the dataset and the partition file say about a run."""
    result = HeldData()
    config = description["config"]
    dataset: Dataset | None = None
    try:
        dataset = _load_dataset(config)
    except (FedBNNError, ImportError) as error:
        _log.warning("labels and images are left out: %s", error)
        result.notes.append(
            f"Labels and images are left out: dataset {config['dataset']} was not at "
            "hand when this report was made."
        )
    partition_file = directory.path / "partition.npz"
    if partition_file.is_file():
        parts = load_partition(partition_file)
        result.total_clients = len(parts)
        step = -(-len(parts) // _MAX_CLIENTS)
        result.clients = list(range(0, len(parts), max(step, 1)))
        shown = [parts[client] for client in result.clients]
        result.sizes = [len(part) for part in shown]
        if dataset is not None:
            result.counts = class_counts(
                dataset.y_train, shown, dataset.num_classes
            ).tolist()
    if dataset is not None and with_mistakes:
        try:
            result.mistakes = _mistakes(directory, description, dataset)
        except (FedBNNError, ImportError) as error:
            # Not the error's own words: a report is sent around, paths stay here.
            _log.warning("misclassified images are left out: %s", error)
            result.notes.append(
                "Misclassified images are left out: the run directory has no model "
                "that can be run here."
            )
    return result


def _load_dataset(config: Mapping[str, Any]) -> Dataset:
    # Needs torch; without it the report still has everything else.
    from fedbnn_core.config import RunConfig
    from fedbnn_core.runs.dataset import load_run_dataset

    return load_run_dataset(RunConfig.from_mapping(config, complete=False))


def held_out_images(
    description: Mapping[str, Any],
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images (n, c, h, w) and labels of a run's test half."""
    return _test_half(_load_dataset(description["config"]), description)


def _test_half(
    dataset: Dataset, description: Mapping[str, Any]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    _, half = split_test(dataset, description["config"]["data-seed"])
    return np.asarray(dataset.x_test[half]), np.asarray(dataset.y_test[half])


def _mistakes(
    directory: RunDirectory, description: Mapping[str, Any], dataset: Dataset
) -> list[dict[str, Any]]:
    """Let the best model classify the test half and return what it got wrong."""
    images, truth = _test_half(dataset, description)
    logits = _best_logits(directory, description, dataset, images)
    chosen = pick_mistakes(logits, truth, limit=_MAX_MISTAKES)
    confidence = softmax(logits).max(axis=1)
    return [
        {
            "image": png_data_uri(images[index]),
            "true": int(truth[index]),
            "predicted": int(logits[index].argmax()),
            "confidence": round(float(confidence[index]), 3),
        }
        for index in chosen
    ]


def _best_logits(
    directory: RunDirectory,
    description: Mapping[str, Any],
    dataset: Dataset,
    images: NDArray[np.uint8],
) -> NDArray[np.float32]:
    """Return logits of the best model: packed if it was exported, else simulated."""
    packed = directory.path / PACKED_MODEL
    if packed.is_file():
        from fedbnn_core.packed import PackedModel

        return PackedModel.load(packed).logits(images, layout="NCHW")
    import torch

    from fedbnn_core.config import RunConfig
    from fedbnn_core.data.batches import normalize
    from fedbnn_core.methods import create_method
    from fedbnn_core.networks.state import load_arrays

    config = RunConfig.from_mapping(description["config"], complete=False)
    method = create_method(config, dataset.input_shape, dataset.num_classes)
    model = method.evaluation_model().eval()
    load_arrays(model, directory.read_state("best.safetensors"))
    pixels = torch.from_numpy(np.ascontiguousarray(images))
    logits = np.empty((len(images), dataset.num_classes), np.float32)
    with torch.inference_mode():
        for start in range(0, len(images), _BATCH):
            part = slice(start, start + _BATCH)
            batch = normalize(pixels[part], dataset.test_mean, dataset.test_std)
            logits[part] = model(batch).numpy()
    return logits


def pick_mistakes(
    logits: NDArray[np.floating[Any]], truth: NDArray[np.int64], *, limit: int
) -> list[int]:
    """Choose telling mistakes: of every confused pair of classes in turn.

    Pairs come in the order of how often they are confused; of a pair, the mistakes
    that the model was surest of come first.
    """
    predicted = logits.argmax(axis=1)
    margin = logits.max(axis=1) - logits[np.arange(len(truth)), truth]
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index in np.flatnonzero(predicted != truth):
        pairs[int(truth[index]), int(predicted[index])].append(int(index))
    queues = [
        sorted(indices, key=lambda index: -margin[index])
        for indices in sorted(pairs.values(), key=lambda group: -len(group))
    ]
    chosen: list[int] = []
    for turn in range(max(map(len, queues), default=0)):
        chosen += [queue[turn] for queue in queues if turn < len(queue)]
        if len(chosen) >= limit:
            break
    return chosen[:limit]


def png_data_uri(image: NDArray[np.uint8]) -> str:
    """Return an image (c, h, w) with one or three channels as a PNG data URI."""
    from PIL import Image

    pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"

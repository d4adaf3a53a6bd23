"""Score a run's models: every round on the validation half, the best one on the test.

The best round is chosen on the validation half; the test half, which nobody has seen,
is used once, for that model only.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedbnn_core.arrays import Arrays
from fedbnn_core.data import Dataset, split_test
from fedbnn_core.data.batches import normalize
from fedbnn_core.errors import FedBNNError
from fedbnn_core.methods.base import Method
from fedbnn_core.networks.complexity import complexity_of, model_sizes
from fedbnn_core.networks.state import load_arrays, state_arrays
from fedbnn_core.server.scoring import (
    Evaluation,
    HeldOut,
    evaluate,
    evaluate_packed,
    pack_for,
    score_packed,
)
from fedbnn_core.server.statistics import estimate_statistics

__all__ = ["BestModel", "RunEvaluation"]

_log = logging.getLogger(__name__)

_STATISTICS_BATCH = 500
_STATISTICS_IMAGES = 1000
"""So many give a mean and a variance to well below what a round changes them by."""


@dataclass
class BestModel:
    """The best round so far, by accuracy on the validation half."""

    round: int = 0
    accuracy: float = -1.0
    loss: float = float("inf")
    state: Arrays = field(default_factory=dict)


class RunEvaluation:
    """The two held-out halves and the network that states are loaded into.

    Parameters
    ----------
    method : of the run; it makes the network.
    dataset : its test images are divided into the halves.
    seed : fixes the division.
    device : where the network runs.
    """

    def __init__(
        self, method: Method, dataset: Dataset, *, seed: int, device: torch.device
    ) -> None:
        self._method = method
        self._device = device
        self._model = method.evaluation_model().to(device)
        validation, test = split_test(dataset, seed)
        self._validation = _held_out(dataset, validation).to(device)
        self._test = _held_out(dataset, test)
        self._said: set[str] = set()
        """Reasons for scoring with PyTorch that the log tells already."""

    def score_candidates(
        self, candidates: Mapping[str, Arrays], round_number: int, best: BestModel
    ) -> tuple[dict[str, float], BestModel]:
        """Score each candidate of a round on the validation half.

        Returns
        -------
        tuple
            The columns of the metrics, and the first candidate if it is better than
            ``best``, else ``best``.
        """
        columns: dict[str, float] = {}
        for number, name in enumerate(candidates):
            state = self._with_statistics(candidates[name])
            score = self._score(state, self._validation)
            suffix = "" if number == 0 else f"_{name}"
            columns[f"val_accuracy{suffix}"] = score.accuracy
            columns[f"val_loss{suffix}"] = score.loss
            if number == 0 and score.accuracy > best.accuracy:
                best = BestModel(round_number, score.accuracy, score.loss, dict(state))
            # A large model's next candidate is made only when this one is gone.
            del state
        return columns, best

    def report(self, best: BestModel, packed: bytes | None) -> dict[str, Any]:
        """Return the fields of `Summary` on the best model and its test score.

        Parameters
        ----------
        best : the best model.
        packed : the same as an `.fbnn` file, which is then what is scored.
        """
        load_arrays(self._model, best.state)
        if packed is None:
            test = evaluate(self._model, self._test.to(self._device))
        else:
            test = score_packed(packed, self._test)
        variants = {
            name: evaluate(variant, self._test.to(self._device)).accuracy
            for name, variant in self._method.final_variants(self._model).items()
        }
        sizes = model_sizes(self._model)
        return {
            "best_round": best.round,
            "val_accuracy": best.accuracy,
            "val_loss": best.loss,
            "test_accuracy": test.accuracy,
            "test_loss": test.loss,
            "variants": variants,
            "test_confusion": test.confusion.tolist(),
            "float32_bytes": sizes.float32_bytes,
            "one_bit_bytes": sizes.one_bit_bytes if self._method.binary else None,
            "paper_bytes": self._paper_bytes(),
        }

    def _paper_bytes(self) -> int | None:
        if not self._method.binary:
            return None
        return round(1e6 * complexity_of(self._method.spec).memory_fedbnn_paper_mb)

    def pack(self, best: BestModel, *, class_names: Sequence[str]) -> bytes:
        """Return the best model as an `.fbnn` file.

        Raises
        ------
        FedBNNError
            It has no packed form.
        """
        load_arrays(self._model, best.state)
        return pack_for(self._model, self._test, class_names)

    def _with_statistics(self, state: Arrays) -> Arrays:
        """Return the state with the batch-norm statistics that the run asks for."""
        if not self._method.binary or self._method.config.served_statistics != "server":
            return state
        held_out = self._validation
        if not len(held_out):
            return state
        load_arrays(self._model, state)
        # Spread over all of them: a dataset may be sorted by its classes.
        images = held_out.images[:: math.ceil(len(held_out) / _STATISTICS_IMAGES)]
        estimate_statistics(
            self._model,
            (
                normalize(batch, held_out.mean, held_out.std)
                # Equal parts: a last batch of one image would have no variance.
                for batch in images.tensor_split(
                    math.ceil(len(images) / _STATISTICS_BATCH)
                )
            ),
        )
        estimated = state_arrays(self._model)
        # Counters stay: they say how often the clients' statistics were updated.
        return {
            name: estimated[name] if np.issubdtype(array.dtype, np.floating) else array
            for name, array in state.items()
        }

    def _score(self, state: Arrays, held_out: HeldOut) -> Evaluation:
        load_arrays(self._model, state)
        if self._method.binary:
            try:
                return evaluate_packed(self._model, held_out)
            except FedBNNError as error:
                self._say_once(str(error))
        return evaluate(self._model, held_out)

    def _say_once(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            _log.warning("Models are scored with PyTorch, not packed: %s", reason)


def _held_out(dataset: Dataset, indices: np.ndarray[Any, Any]) -> HeldOut:
    return HeldOut(
        dataset.x_test[indices],
        dataset.y_test[indices],
        dataset.test_mean,
        dataset.test_std,
        num_classes=dataset.num_classes,
    )

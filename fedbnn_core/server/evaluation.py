"""Score a run's models: every round on the validation half, the best one on the test.

fedbnn.md section 4: the best round is chosen on the validation half, and the unseen
test half is used once, for that model only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedbnn_core.arrays import Arrays
from fedbnn_core.data import Dataset, split_test
from fedbnn_core.methods.base import Method, load_arrays
from fedbnn_core.networks.complexity import model_sizes
from fedbnn_core.server.packed_scoring import evaluate_packed
from fedbnn_core.server.scoring import Evaluation, HeldOut, evaluate

__all__ = ["BestModel", "RunEvaluation"]


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
        self._model = method.evaluation_model().to(device)
        self._validation, self._test = (
            _held_out(dataset, half, device) for half in split_test(dataset, seed)
        )

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
            state = candidates[name]
            score = self._score(state, self._validation)
            suffix = "" if number == 0 else f"_{name}"
            columns[f"val_accuracy{suffix}"] = score.accuracy
            columns[f"val_loss{suffix}"] = score.loss
            if number == 0 and score.accuracy > best.accuracy:
                best = BestModel(round_number, score.accuracy, score.loss, dict(state))
            # A large model's next candidate is made only when this one is gone.
            del state
        return columns, best

    def report(self, best: BestModel) -> dict[str, Any]:
        """Return what a run's summary says of its best model, the test half's score."""
        test = self._score(best.state, self._test)
        variants = {
            f"{name}_test_accuracy": evaluate(variant, self._test).accuracy
            for name, variant in self._method.final_variants(self._model).items()
        }
        sizes = model_sizes(self._model)
        return {
            "best_round": best.round,
            "val_accuracy": best.accuracy,
            "val_loss": best.loss,
            "test_accuracy": test.accuracy,
            "test_loss": test.loss,
            **variants,
            "test_confusion": test.confusion.tolist(),
            "float32_bytes": sizes.float32_bytes,
            "one_bit_bytes": sizes.one_bit_bytes if self._method.binary else None,
        }

    def _score(self, state: Arrays, held_out: HeldOut) -> Evaluation:
        load_arrays(self._model, state)
        packed = evaluate_packed(self._model, held_out)
        return packed or evaluate(self._model, held_out)


def _held_out(
    dataset: Dataset, indices: np.ndarray[Any, Any], device: torch.device
) -> HeldOut:
    return HeldOut(
        dataset.x_test[indices],
        dataset.y_test[indices],
        dataset.test_mean,
        dataset.test_std,
        num_classes=dataset.num_classes,
        device=device,
    )

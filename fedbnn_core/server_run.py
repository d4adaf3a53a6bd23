"""The server's side of a run, without Flower: state, evaluation, best model, files."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbnn_core import __version__
from fedbnn_core.aggregation import Arrays
from fedbnn_core.binarize import Sharpness
from fedbnn_core.complexity import model_sizes
from fedbnn_core.config import RunConfig
from fedbnn_core.data import (
    Dataset,
    limited,
    load_dataset,
    partition_indices,
    save_partition,
    split_test,
)
from fedbnn_core.errors import RunError
from fedbnn_core.evaluation import Evaluation, HeldOut, evaluate
from fedbnn_core.methods import create_method
from fedbnn_core.methods.base import load_arrays
from fedbnn_core.replies import StoredReply
from fedbnn_core.run_directory import RunDirectory
from fedbnn_core.seeding import derive_seed
from fedbnn_core.tracking import RunTrackers
from fedbnn_core.training import choose_device
from fedbnn_core.validation import ReplyRules

__all__ = ["BestModel", "RoundTraffic", "ServerRun", "state_hash"]


@dataclass
class BestModel:
    """The best round so far, by accuracy on the validation half."""

    round: int = 0
    accuracy: float = -1.0
    loss: float = float("inf")
    state: Arrays = field(default_factory=dict)


@dataclass
class RoundTraffic:
    """What a round cost and who took part, as the transport saw it."""

    bytes_up: int = 0
    bytes_down: int = 0
    clients_asked: int = 0
    train_seconds: float = 0.0
    losses: dict[int, float] = field(default_factory=dict)
    """Training loss by partition id."""
    layer_metrics: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    """Per-layer figures by partition id."""
    rejected: list[dict[str, Any]] = field(default_factory=list)
    """Replies that did not count: client and reason."""


class ServerRun:
    """One federated run as the server sees it.

    Parameters
    ----------
    config : the run's config.
    num_partitions : into how many parts the training data is divided.
    """

    def __init__(self, config: RunConfig, num_partitions: int) -> None:
        self.config = config
        self.num_partitions = num_partitions
        self.dataset = load_run_dataset(config)
        self.method = create_method(
            config, self.dataset.input_shape, self.dataset.num_classes
        )
        self.device = choose_device(config.device)
        self._model = self.method.evaluation_model().to(self.device)
        self._nominal = self.method.nominal_bytes()
        expected = self.method.expected_reply()
        self.rules = ReplyRules(
            arrays=expected[0],
            rotations=expected[1],
            max_examples=len(self.dataset.y_train),
        )
        validation, test = split_test(self.dataset, config.data_seed)
        self._validation, self._test = (
            self._held_out(half) for half in (validation, test)
        )
        self.broadcast = self.method.initial_broadcast()
        self.rounds_done = 0
        self.best = BestModel()
        self.started_at = time.monotonic()
        self.directory = RunDirectory.create(
            Path(config.output_dir).expanduser().resolve(),
            config.run_name or f"{config.method}-{_slug(config.dataset)}",
        )
        self.partition_file = self.directory.path / "partition.npz"
        save_partition(
            self.partition_file, run_partition(config, self.dataset, num_partitions)
        )
        description = {
            "config": config.to_mapping(),
            "num_partitions": num_partitions,
            "fedbnn_version": __version__,
            "torch_version": torch.__version__,
            "device": str(self.device),
            "input_shape": list(self.dataset.input_shape),
            "class_names": list(self.dataset.class_names),
            "mean": list(self.dataset.mean),
            "std": list(self.dataset.std),
        }
        self.directory.write_json("config.json", description)
        self._trackers = RunTrackers(self.directory.path, description)

    def _held_out(self, indices: np.ndarray[Any, Any]) -> HeldOut:
        data = self.dataset
        return HeldOut(
            data.x_test[indices],
            data.y_test[indices],
            data.test_mean,
            data.test_std,
            num_classes=data.num_classes,
            device=self.device,
        )

    def sample(self, available: Sequence[int]) -> list[int]:
        """Return the sorted partition ids that train in the next round.

        The draw depends on the seed, the round and the set of available clients only.
        """
        if not available:
            raise RunError("no client is connected; start clients and run again")
        generator = np.random.default_rng(
            derive_seed(self.config.seed, "sampling", self.rounds_done)
        )
        count = min(self.config.clients_per_round, len(available))
        chosen = generator.choice(sorted(available), size=count, replace=False)
        return sorted(int(partition) for partition in chosen)

    def finish_round(
        self, replies: Sequence[StoredReply], traffic: RoundTraffic
    ) -> dict[str, Any]:
        """Combine the replies, evaluate if it is time, write the metrics line.

        Returns
        -------
        dict
            The line as written to ``metrics.jsonl``.
        """
        started = time.monotonic()
        result = self.method.combine(replies, self.broadcast)
        combined = time.monotonic()
        round_index = self.rounds_done
        self.broadcast = result.broadcast
        self.rounds_done += 1
        line: dict[str, Any] = {
            "round": self.rounds_done,
            "num_rounds": self.config.num_server_rounds,
        }
        is_last = self.rounds_done == self.config.num_server_rounds
        if is_last or self.rounds_done % self.config.evaluate_every == 0:
            line |= self._evaluate_candidates(result.candidates)
        evaluated = time.monotonic()
        line |= {
            "best_round": self.best.round,
            "best_val_accuracy": self.best.accuracy,
            "train_loss": _weighted(replies, traffic.losses),
            "lr": self.config.learning_rate(round_index),
            "t": Sharpness.at(round_index, self.config.num_server_rounds, 0, 1).t,
            "layers": self._layer_figures(result.layers, replies, traffic),
            "clients": [reply.partition_id for reply in replies],
            "examples": sum(reply.num_examples for reply in replies),
            "rejected": traffic.rejected,
            "bytes_up": traffic.bytes_up,
            "bytes_down": traffic.bytes_down,
            "bytes_up_nominal": self._nominal.up * len(replies),
            "bytes_down_nominal": self._nominal.down * traffic.clients_asked,
            "seconds": {
                "train": round(traffic.train_seconds, 3),
                "aggregate": round(combined - started, 3),
                "evaluate": round(evaluated - combined, 3),
            },
            "elapsed_seconds": round(evaluated - self.started_at, 3),
        }
        self.directory.append_metrics(line)
        self._trackers.round_finished(line)
        return line

    def _evaluate_candidates(self, candidates: dict[str, Arrays]) -> dict[str, Any]:
        """Score each candidate on the validation half; the first may become best."""
        columns: dict[str, Any] = {}
        for number, (name, state) in enumerate(candidates.items()):
            score = self._score(state, self._validation)
            suffix = "" if number == 0 else f"_{name}"
            columns[f"val_accuracy{suffix}"] = score.accuracy
            columns[f"val_loss{suffix}"] = score.loss
            if number == 0 and score.accuracy > self.best.accuracy:
                self.best = BestModel(
                    self.rounds_done, score.accuracy, score.loss, dict(state)
                )
                self.directory.write_state(
                    "best.safetensors",
                    self.best.state,
                    {"round": str(self.best.round), "kind": name},
                )
        return columns

    def _score(self, state: Arrays, held_out: HeldOut) -> Evaluation:
        load_arrays(self._model, state)
        return evaluate(self._model, held_out)

    def _layer_figures(
        self,
        layers: dict[str, dict[str, float]],
        replies: Sequence[StoredReply],
        traffic: RoundTraffic,
    ) -> dict[str, dict[str, float | None]]:
        """Return the combined scalars of each layer and the clients' mean cos(phi)."""
        figures: dict[str, dict[str, float | None]] = {}
        for number, (name, scalars) in enumerate(layers.items()):
            cosines = {
                client: metrics["cos-phi"][number]
                for client, metrics in traffic.layer_metrics.items()
                if number < len(metrics.get("cos-phi", []))
            }
            figures[name] = {**scalars, "cos_phi": _weighted(replies, cosines)}
        return figures

    def finish(self) -> dict[str, Any]:
        """Score the best model on the test half, once; write models and summary."""
        if not self.best.state:
            raise RunError("the run ended before any model was evaluated")
        self.directory.write_state(
            "final.safetensors", self.broadcast, {"round": str(self.rounds_done)}
        )
        test = self._score(self.best.state, self._test)
        variants = {
            f"{name}_test_accuracy": evaluate(variant, self._test).accuracy
            for name, variant in self.method.final_variants(self._model).items()
        }
        sizes = model_sizes(self._model)
        summary = {
            "method": self.config.method,
            "model": self.config.model,
            "dataset": self.config.dataset,
            "partition": self.config.partition,
            "rounds": self.rounds_done,
            "clients": self.num_partitions,
            "best_round": self.best.round,
            "val_accuracy": self.best.accuracy,
            "val_loss": self.best.loss,
            "test_accuracy": test.accuracy,
            "test_loss": test.loss,
            **variants,
            "test_confusion": test.confusion.tolist(),
            "float32_bytes": sizes.float32_bytes,
            "one_bit_bytes": sizes.one_bit_bytes if self.method.binary else None,
            "best_sha256": state_hash(self.best.state),
            "final_sha256": state_hash(self.broadcast),
            "seconds": round(time.monotonic() - self.started_at, 3),
            "directory": str(self.directory.path),
        }
        self.directory.write_json("summary.json", summary)
        self._trackers.run_finished(summary)
        return summary


def load_run_dataset(config: RunConfig) -> Dataset:
    """Return the run's dataset from where the config says it lies."""
    dataset = load_dataset(
        config.dataset,
        config.data_dir or None,
        faithful_test_statistics=config.faithful_test_statistics,
    )
    return limited(
        dataset,
        max_train=config.train_limit,
        max_test=config.test_limit,
        seed=config.data_seed,
    )


def run_partition(
    config: RunConfig, dataset: Dataset, num_partitions: int
) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """Return which training samples each of the run's clients holds."""
    return partition_indices(
        dataset.y_train,
        num_partitions,
        config.partition,
        alpha=config.dirichlet_alpha,
        label_fraction=config.label_fraction,
        min_size=config.min_partition_size,
        seed=config.data_seed,
        writer_ids=dataset.writer_ids,
    )


def state_hash(state: Arrays) -> str:
    """Return the SHA-256 of a state's names, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(state):
        array = state[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _weighted(replies: Sequence[StoredReply], values: dict[int, float]) -> float | None:
    """Return the example-weighted mean of a figure over the clients that gave it."""
    known = [reply for reply in replies if reply.partition_id in values]
    total = sum(reply.num_examples for reply in known)
    if total == 0:
        return None
    return sum(values[r.partition_id] * r.num_examples for r in known) / total


def _slug(name: str) -> str:
    kept = "".join(c if c.isalnum() or c in "-." else "-" for c in name)
    return kept.strip("-.")[-40:].lstrip("-.") or "run"

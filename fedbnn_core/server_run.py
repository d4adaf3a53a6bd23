"""The server's side of a run, without Flower: state, evaluation, best model, files."""

import hashlib
import math
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbnn_core import __version__
from fedbnn_core.aggregation import Arrays, ReplyArrays
from fedbnn_core.binarize import Sharpness
from fedbnn_core.checkpoint import Checkpoint, CheckpointFolder
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
from fedbnn_core.durable import disk_errors, require_space
from fedbnn_core.errors import ConfigError, RunError
from fedbnn_core.evaluation import Evaluation, HeldOut, evaluate
from fedbnn_core.methods import create_method
from fedbnn_core.methods.base import load_arrays
from fedbnn_core.privacy import create_accountant
from fedbnn_core.quarantine import Quarantine
from fedbnn_core.replies import SPILL_PREFIX, StoredReply
from fedbnn_core.robust import clip_replies
from fedbnn_core.run_directory import RunDirectory
from fedbnn_core.sampling import sample_clients
from fedbnn_core.tracking import RunTrackers
from fedbnn_core.traffic import RoundTraffic, weighted_mean
from fedbnn_core.training import choose_device
from fedbnn_core.validation import ReplyRules

__all__ = [
    "BestModel",
    "RoundTraffic",
    "ServerRun",
    "load_run_dataset",
    "run_partition",
    "state_hash",
    "stored_config",
]


@dataclass
class BestModel:
    """The best round so far, by accuracy on the validation half."""

    round: int = 0
    accuracy: float = -1.0
    loss: float = float("inf")
    state: Arrays = field(default_factory=dict)


class ServerRun:
    """One federated run as the server sees it.

    Parameters
    ----------
    config : the run's config; with ``resume`` the run goes on in that directory, and
        the config must be the one stored there (`stored_config`).
    num_partitions : into how many parts the training data is divided.

    Raises
    ------
    RunError
        The directory cannot be written, has no room, or is in use.
    """

    def __init__(self, config: RunConfig, num_partitions: int) -> None:
        self.config = config
        self.num_partitions = num_partitions
        self.dataset = load_run_dataset(config)
        self.method = create_method(
            config, self.dataset.input_shape, self.dataset.num_classes
        )
        if config.privacy != "none" and not self.method.private:
            raise ConfigError(
                f"method {config.method!r} has no private mode; set privacy to 'none' "
                "or method to 'fedbnn' or 'fedavg'"
            )
        self.accountant = create_accountant(config)
        self.device = choose_device(config.device)
        self._model = self.method.evaluation_model().to(self.device)
        self._nominal = self.method.nominal_bytes()
        validation, test = split_test(self.dataset, config.data_seed)
        self._validation, self._test = (
            self._held_out(half) for half in (validation, test)
        )
        self.broadcast = self.method.initial_broadcast()
        self.rounds_done = 0
        self.best = BestModel()
        self.quarantine = Quarantine(
            after=config.quarantine_after, rounds=config.quarantine_rounds
        )
        self._failed_attempts: list[dict[str, Any]] = []
        self._earlier_seconds = 0.0
        self.started_at = time.monotonic()
        partition = run_partition(config, self.dataset, num_partitions)
        expected = self.method.expected_reply()
        self.rules = ReplyRules(
            arrays=expected[0],
            rotations=expected[1],
            max_examples=max(len(indices) for indices in partition),
            max_update_norm=config.max_update_norm,
        )
        if config.resume:
            self.directory = RunDirectory.open(Path(config.resume))
        else:
            self.directory = RunDirectory.create(
                Path(config.output_dir).expanduser().resolve(),
                config.run_name or f"{config.method}-{_slug(config.dataset)}",
            )
        self.directory.lock()
        self.partition_file = self.directory.path / "partition.npz"
        self._checkpoints = CheckpointFolder(
            self.directory.path / "checkpoints", keep=config.keep_checkpoints
        )
        self.notes: list[str] = []
        """What a person should know about how the run was resumed."""
        if config.resume:
            self._restore()
        else:
            self._prepare_directory(partition)
        self._trackers = RunTrackers(self.directory.path, self._description())

    def _prepare_directory(self, partition: list[np.ndarray[Any, Any]]) -> None:
        """Write all that is known before training, and so find a bad disk now."""
        state_bytes = sum(array.nbytes for array in self.broadcast.values())
        require_space(
            self.directory.path, (self.config.keep_checkpoints + 5) * state_bytes
        )
        with disk_errors(self.partition_file):
            save_partition(self.partition_file, partition)
        self.directory.write_json("config.json", self._description())
        self._save_checkpoint(previous={})

    def _description(self) -> dict[str, Any]:
        return {
            "config": self.config.to_mapping(),
            "num_partitions": self.num_partitions,
            "fedbnn_version": __version__,
            "torch_version": torch.__version__,
            "device": str(self.device),
            "input_shape": list(self.dataset.input_shape),
            "class_names": list(self.dataset.class_names),
            "mean": list(self.dataset.mean),
            "std": list(self.dataset.std),
        }

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

    def _save_checkpoint(self, previous: Arrays) -> None:
        best = self.best
        self._checkpoints.save(
            Checkpoint(
                round=self.rounds_done,
                weights=self.broadcast,
                previous=previous,
                best=best.state,
                best_round=best.round,
                method=self.method.server_state(),
                facts={
                    # Sampling has no state: it follows from seed, round and attempt.
                    "seed": self.config.seed,
                    "names": list(self.broadcast),
                    "best_accuracy": best.accuracy,
                    "best_loss": best.loss if math.isfinite(best.loss) else None,
                    "quarantine": self.quarantine.to_json(),
                    "privacy": None if not self.accountant else self.accountant.state(),
                    "metrics": self.directory.metrics_position(),
                    "elapsed_seconds": self.elapsed_seconds(),
                    "fedbnn_version": __version__,
                },
            )
        )

    def _restore(self) -> None:
        """Go back to the last complete checkpoint; without one, to the start."""
        for folder in self.directory.path.glob(f"{SPILL_PREFIX}*"):
            shutil.rmtree(folder, ignore_errors=True)
        checkpoint, damages = self._checkpoints.load_latest()
        self.notes += [f"Damaged checkpoint: {damage}" for damage in damages]
        if checkpoint is None:
            self.notes.append("There is no checkpoint yet: starting from round 1")
            (self.directory.path / "metrics.jsonl").unlink(missing_ok=True)
            self._save_checkpoint(previous={})
            return
        facts = checkpoint.facts
        # In the old order: safetensors sorts the names.
        self.broadcast = {name: checkpoint.weights[name] for name in facts["names"]}
        self.rounds_done = checkpoint.round
        if checkpoint.best:
            loss = facts["best_loss"]
            self.best = BestModel(
                checkpoint.best_round,
                facts["best_accuracy"],
                math.inf if loss is None else loss,
                checkpoint.best,
            )
            self._write_best()
        self.method.load_server_state(checkpoint.method)
        self.quarantine.load_json(facts["quarantine"])
        if self.accountant:
            self.accountant.load_state(facts["privacy"])
            # Clients may have replied to rounds that are done again.
            self.accountant.add_lost_rounds(self.config.checkpoint_every)
        if not self.directory.rewind_metrics(facts["metrics"]):
            self.notes.append("metrics.jsonl was changed since the checkpoint")
        self._earlier_seconds = facts["elapsed_seconds"]
        self.notes.append(f"Resuming after round {self.rounds_done}")

    def elapsed_seconds(self) -> float:
        """Return the run's time so far, that before a resume included."""
        return round(self._earlier_seconds + time.monotonic() - self.started_at, 3)

    def sample(
        self, available: Sequence[int], *, tried: Collection[int] = ()
    ) -> list[int]:
        """Return the sorted partition ids that are asked to train in the next round.

        Clients in quarantine are left out as long as there are enough others.

        Parameters
        ----------
        available : the connected clients.
        tried : the clients of this round's earlier attempts.
        """
        wanted = self.config.clients_per_round + self.config.over_selection
        return sample_clients(
            self.quarantine.admitted(available, self.rounds_done, wanted),
            wanted,
            seed=self.config.seed,
            round_index=self.rounds_done,
            attempt=len(self._failed_attempts),
            tried=tried,
        )

    def admit_examples(self, count: int) -> None:
        """Accept replies from a device that said it holds so many images of its own."""
        if count > self.rules.max_examples:
            self.rules = replace(self.rules, max_examples=count)

    def needed_replies(self, asked: int) -> tuple[int, int]:
        """Return (quorum, replies after which a round ends) for clients asked."""
        wanted = min(asked, self.config.clients_per_round)
        return max(1, math.ceil(self.config.quorum * wanted)), wanted

    def fail_attempt(self, traffic: RoundTraffic) -> None:
        """Note an attempt below the quorum; raise `RunError` after the last one."""
        self._failed_attempts.append(traffic.attempt())
        if self.accountant:
            self.accountant.record(traffic.asked)
        self._judge_clients(traffic, good=traffic.update_norms)
        if len(self._failed_attempts) > self.config.max_round_retries:
            raise RunError(
                f"round {self.rounds_done + 1} had too few usable replies in "
                f"{len(self._failed_attempts)} attempts (quorum {self.config.quorum:g} "
                f"of {self.config.clients_per_round}); everything is saved in "
                f"{self.directory.path}, go on with `fedbnn resume` when the clients "
                "are well"
            )

    def _judge_clients(self, traffic: RoundTraffic, good: Iterable[int]) -> list[int]:
        return self.quarantine.record(
            self.rounds_done,
            good=good,
            bad=[entry["client"] for entry in traffic.rejected],
        )

    def finish_round(
        self, replies: Sequence[StoredReply], traffic: RoundTraffic
    ) -> dict[str, Any]:
        """Combine the replies, evaluate if it is time, write metrics and checkpoint.

        Returns
        -------
        dict
            The line as written to ``metrics.jsonl``.
        """
        started = time.monotonic()
        previous = self.broadcast
        result = self.method.combine(self._prepared(replies, traffic), previous)
        combined = time.monotonic()
        round_index = self.rounds_done
        quarantined = self._judge_clients(
            traffic, good=[reply.partition_id for reply in replies]
        )
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
            "train_loss": weighted_mean(replies, traffic.losses),
            "lr": self.config.learning_rate(round_index),
            "t": Sharpness.at(round_index, self.config.num_server_rounds, 0, 1).t,
            "layers": self._layer_figures(result.layers, replies, traffic),
            "clients": [reply.partition_id for reply in replies],
            "examples": sum(reply.num_examples for reply in replies),
            "asked": traffic.asked,
            "missing": traffic.missing,
            "rejected": traffic.rejected,
            "failed_attempts": self._failed_attempts,
            "quarantined": quarantined,
            "update_norm": weighted_mean(replies, traffic.update_norms),
            "bytes_up": traffic.bytes_up,
            "bytes_down": traffic.bytes_down,
            "bytes_up_nominal": self._nominal.up * len(replies),
            "bytes_down_nominal": self._nominal.down * len(traffic.asked),
        }
        if self.accountant:
            self.accountant.record(traffic.asked)
            line["epsilon"] = self.accountant.epsilon()
        line |= {
            "seconds": {
                "train": round(traffic.train_seconds, 3),
                "aggregate": round(combined - started, 3),
                "evaluate": round(evaluated - combined, 3),
            },
            "elapsed_seconds": self.elapsed_seconds(),
        }
        self._failed_attempts = []
        self.directory.append_metrics(line)
        self._trackers.round_finished(line)
        if is_last or self.rounds_done % self.config.checkpoint_every == 0:
            self._save_checkpoint(previous)
        return line

    def _prepared(
        self, replies: Sequence[StoredReply], traffic: RoundTraffic
    ) -> Sequence[ReplyArrays]:
        """Return the replies as they are combined: clipped, if so configured."""
        if self.config.robust != "clip":
            return replies
        return clip_replies(
            replies,
            [traffic.update_norms[reply.partition_id] for reply in replies],
            self.broadcast,
            max_norm=self.config.robust_clip_norm,
        )

    def _evaluate_candidates(self, candidates: Mapping[str, Arrays]) -> dict[str, Any]:
        """Score each candidate on the validation half; the first may become best."""
        columns: dict[str, Any] = {}
        for number, name in enumerate(candidates):
            state = candidates[name]
            score = self._score(state, self._validation)
            suffix = "" if number == 0 else f"_{name}"
            columns[f"val_accuracy{suffix}"] = score.accuracy
            columns[f"val_loss{suffix}"] = score.loss
            if number == 0 and score.accuracy > self.best.accuracy:
                self.best = BestModel(
                    self.rounds_done, score.accuracy, score.loss, dict(state)
                )
                self._write_best()
            # A large model's next candidate is made only when this one is gone.
            del state
        return columns

    def _write_best(self) -> None:
        self.directory.write_state(
            "best.safetensors", self.best.state, {"round": str(self.best.round)}
        )

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
            figures[name] = {**scalars, "cos_phi": weighted_mean(replies, cosines)}
        return figures

    def finish(self, *, stopped: str | None = None) -> dict[str, Any]:
        """Score the best model on the test half, once; write models and summary.

        Parameters
        ----------
        stopped : why the run ends before its last round, if it does.
        """
        if not self.best.state and not stopped:
            raise RunError("the run ended before any model was evaluated")
        self.directory.write_state(
            "final.safetensors", self.broadcast, {"round": str(self.rounds_done)}
        )
        summary: dict[str, Any] = {
            "status": "stopped" if stopped else "completed",
            "method": self.config.method,
            "model": self.config.model,
            "dataset": self.config.dataset,
            "partition": self.config.partition,
            "rounds": self.rounds_done,
            "clients": self.num_partitions,
        }
        if stopped:
            summary |= {"reason": stopped, "failed_attempts": self._failed_attempts}
        if self.best.state:
            summary |= self._result()
        if self.accountant:
            summary |= {
                "epsilon": self.accountant.epsilon(),
                "delta": self.config.privacy_delta,
            }
        summary |= {
            "final_sha256": state_hash(self.broadcast),
            "seconds": self.elapsed_seconds(),
            "directory": str(self.directory.path),
        }
        self.directory.write_json("summary.json", summary)
        self._trackers.run_finished(summary)
        self.directory.release()
        return summary

    def _result(self) -> dict[str, Any]:
        test = self._score(self.best.state, self._test)
        variants = {
            f"{name}_test_accuracy": evaluate(variant, self._test).accuracy
            for name, variant in self.method.final_variants(self._model).items()
        }
        sizes = model_sizes(self._model)
        return {
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
        }


def stored_config(config: RunConfig) -> RunConfig:
    """Return the config of the run to be resumed, or the given one for a new run."""
    if not config.resume:
        return config
    path = Path(config.resume).expanduser().resolve()
    stored = RunDirectory.open(path).read_json("config.json")["config"]
    return RunConfig.from_mapping(stored | {"resume": str(path)}, complete=False)


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


def _slug(name: str) -> str:
    kept = "".join(c if c.isalnum() or c in "-." else "-" for c in name)
    return kept.strip("-.")[-40:].lstrip("-.") or "run"

"""The server's side of a run, without Flower: one round after the other."""

import math
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbnn_core import __version__
from fedbnn_core.aggregation.robust import planned_trim, possible_trim, prepare_replies
from fedbnn_core.arrays import Arrays, to_safetensors
from fedbnn_core.binary.surrogate import Sharpness
from fedbnn_core.config import RunConfig
from fedbnn_core.data import save_partition
from fedbnn_core.errors import RunError
from fedbnn_core.files import disk_errors, require_space
from fedbnn_core.methods import create_method
from fedbnn_core.reporting.tracking import RunTrackers
from fedbnn_core.runs.dataset import load_run_dataset, run_partition
from fedbnn_core.runs.directory import RunDirectory
from fedbnn_core.server.checkpoint import CheckpointFolder
from fedbnn_core.server.evaluation import BestModel, RunEvaluation
from fedbnn_core.server.opening import changes_since, refuse_unclippable
from fedbnn_core.server.privacy import create_accountant
from fedbnn_core.server.quarantine import Quarantine
from fedbnn_core.server.record import RoundTraffic, layer_figures, weighted_mean
from fedbnn_core.server.reply_store import (
    DEFAULT_BUDGET_BYTES,
    SPILL_PREFIX,
    StoredReply,
)
from fedbnn_core.server.sampling import sample_clients
from fedbnn_core.server.state import RunState, state_hash
from fedbnn_core.server.validation import ReplyRules
from fedbnn_core.training.device import choose_device

__all__ = ["ServerRun", "stored_config"]

_SUFFIX = ".safetensors"
_BEST = f"best{_SUFFIX}"


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
        refuse_unclippable(config, self.method)
        self.device = choose_device(config.device)
        # Before the evaluation, which takes over the network that it is read from.
        template = self.method.template
        self._nominal_bytes = template.nominal_bytes
        self._evaluation = RunEvaluation(
            self.method, self.dataset, seed=config.data_seed, device=self.device
        )
        self._state = RunState(
            broadcast=template.broadcast,
            quarantine=Quarantine(
                after=config.quarantine_after, rounds=config.quarantine_rounds
            ),
            accountant=create_accountant(config),
        )
        self._failed_attempts: list[dict[str, Any]] = []
        partition = run_partition(config, self.dataset, num_partitions)
        self._examples = {k: len(indices) for k, indices in enumerate(partition)}
        self._own_examples: Mapping[int, int] = {}
        self.rules = ReplyRules(
            arrays=template.reply,
            rotations=template.rotations,
            max_update_norm=config.max_update_norm,
            measure_update=self.method.update_norm,
        )
        if config.resume:
            self.directory = RunDirectory.open(Path(config.resume))
        else:
            self.directory = RunDirectory.create(
                Path(config.output_dir).expanduser().resolve(),
                config.run_name or f"{config.method}-{_slug(config.dataset)}",
            )
        self.directory.lock()
        if self._state.accountant:
            self._state.accountant.use_ledger(self.directory.path / "privacy.jsonl")
        self.partition_file = self.directory.path / "partition.npz"
        self._checkpoints = CheckpointFolder(
            self.directory.path / "checkpoints",
            keep=config.keep_checkpoints,
            best_copy=self.directory.path / _BEST,
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
        self._require_space()
        with disk_errors(self.partition_file):
            save_partition(self.partition_file, partition)
        self.directory.write_json("config.json", self._description())
        self._save_checkpoint(previous={})

    def _require_space(self) -> None:
        """Raise `RunError` unless all that the run will write has room."""
        config = self.config
        # Each checkpoint that is kept may have a best model of its own; then there are
        # the first one's previous weights, a checkpoint under way, best, final and a
        # temporary file.
        states = 2 * config.keep_checkpoints + 6
        state_bytes = len(to_safetensors(self.broadcast))
        replies = min(config.clients_per_round, self.num_partitions)
        expected = (*self.rules.arrays.values(), *self.rules.rotations.values())
        reply_bytes = sum(array.nbytes for array in expected)
        spilled = max(0, replies * reply_bytes - DEFAULT_BUDGET_BYTES)
        there = sum(p.stat().st_size for p in self.directory.path.rglob(f"*{_SUFFIX}"))
        require_space(self.directory.path, states * state_bytes + spilled - there)

    def _description(self) -> dict[str, Any]:
        return {
            "config": self.config.to_mapping(),
            "num_partitions": self.num_partitions,
            "fedbnn_version": __version__,
            "torch_version": torch.__version__,
            "device": str(self.device),
            "method_title": self.method.title,
            "binary": self.method.binary,
            "train_images": len(self.dataset.y_train),
            "test_images": len(self.dataset.y_test),
            "input_shape": list(self.dataset.input_shape),
            "class_names": list(self.dataset.class_names),
            "mean": list(self.dataset.mean),
            "std": list(self.dataset.std),
            "test_mean": list(self.dataset.test_mean),
            "test_std": list(self.dataset.test_std),
        }

    @property
    def broadcast(self) -> Arrays:
        """The state that the next round's clients get."""
        return self._state.broadcast

    @property
    def rounds_done(self) -> int:
        """How many rounds are over."""
        return self._state.rounds_done

    @property
    def best(self) -> BestModel:
        """The best model so far."""
        return self._state.best

    def elapsed_seconds(self) -> float:
        """Return the run's time so far, that before a resume included."""
        return self._state.elapsed_seconds()

    def _save_checkpoint(self, previous: Arrays) -> None:
        self._checkpoints.save(
            self._state.to_checkpoint(
                self.config,
                previous=previous,
                method=self.method,
                directory=self.directory,
            )
        )

    def _restore(self) -> None:
        """Go back to the last complete checkpoint; without one, to the start."""
        stored = self.directory.read_json("config.json")
        self.notes += changes_since(stored, self._description(), self.directory.path)
        for folder in self.directory.path.glob(f"{SPILL_PREFIX}*"):
            shutil.rmtree(folder, ignore_errors=True)
        checkpoint, damages = self._checkpoints.load_latest()
        self.notes += [f"Damaged checkpoint: {damage}" for damage in damages]
        if checkpoint is None:
            metrics = self.directory.path / "metrics.jsonl"
            # The first checkpoint is written before the first round.
            if metrics.is_file() and (content := metrics.read_bytes()):
                rounds = content.count(b"\n")
                raise RunError(
                    f"{self.directory.path} has {rounds} rounds in metrics.jsonl but "
                    "no checkpoints; restore the folder checkpoints or start a new run"
                )
            self.notes.append("There is no checkpoint yet: starting from round 1")
            self._require_space()
            self._save_checkpoint(previous={})
            return
        self._require_space()
        intact = self._state.restore(
            checkpoint, method=self.method, directory=self.directory
        )
        if not intact:
            self.notes.append("metrics.jsonl was changed since the checkpoint")
        if self.best.state:
            self._write_best()
        self.notes.append(f"Resuming after round {self.rounds_done}")

    def sample(
        self, available: Sequence[int], *, tried: Collection[int] = ()
    ) -> list[int]:
        """Return the sorted partition ids that are asked to train in the next round.

        Clients in quarantine are left out as long as the others make a quorum; when
        that has failed, they are let in to fill the round. In a private run this spends
        their privacy.

        Parameters
        ----------
        available : the connected clients.
        tried : the clients of this round's earlier attempts.
        """
        wanted = self.config.clients_per_round + self.config.over_selection
        quorum, _ = self.needed_replies(len(available))
        needed = wanted if self._failed_attempts else quorum
        chosen = sample_clients(
            self._state.quarantine.admitted(available, self.rounds_done, needed),
            wanted,
            seed=self.config.seed,
            round_index=self.rounds_done,
            attempt=len(self._failed_attempts),
            tried=tried,
        )
        if self._state.accountant:
            self._state.accountant.record(chosen)
        return chosen

    def admit_examples(self, counts: Mapping[int, int]) -> None:
        """Note how many images of their own devices say they hold; 0 means none."""
        self._own_examples = counts

    def rules_for(self, client: int) -> ReplyRules:
        """Return what an acceptable reply of a client looks like.

        None may say it has trained on more images than it holds, and so weigh more; in
        a private run all weigh the same.
        """
        held = self._own_examples.get(client) or self._examples.get(client, 0)
        most = held if self.config.privacy == "none" else 1
        return replace(self.rules, max_examples=most)

    def needed_replies(self, asked: int) -> tuple[int, int]:
        """Return (quorum, replies after which a round ends) for clients asked."""
        wanted = min(asked, self.config.clients_per_round)
        return max(1, math.ceil(self.config.quorum * wanted)), wanted

    def fail_attempt(self, traffic: RoundTraffic) -> None:
        """Note an attempt below the quorum; raise `RunError` after the last one."""
        quarantined = self._judge_clients(traffic, good=traffic.update_norms)
        self._failed_attempts.append(traffic.attempt() | {"quarantined": quarantined})
        if len(self._failed_attempts) > self.config.max_round_retries:
            raise RunError(
                f"round {self.rounds_done + 1} had too few usable replies in "
                f"{len(self._failed_attempts)} attempts (quorum {self.config.quorum:g} "
                f"of {self.config.clients_per_round}); everything is saved in "
                f"{self.directory.path}, go on with `fedbnn resume` when the clients "
                "are well"
            )

    def _judge_clients(self, traffic: RoundTraffic, good: Iterable[int]) -> list[int]:
        return self._state.quarantine.record(
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
        config, state = self.config, self._state
        started = time.monotonic()
        previous, round_index = state.broadcast, state.rounds_done
        prepared = prepare_replies(config, replies, traffic.update_norms, previous)
        result = self.method.aggregate(prepared, previous)
        combined = time.monotonic()
        caught = {c for failed in self._failed_attempts for c in failed["quarantined"]}
        caught |= set(
            self._judge_clients(traffic, good=[reply.partition_id for reply in replies])
        )
        state.broadcast = result.broadcast
        state.rounds_done += 1
        is_last = state.rounds_done == config.num_server_rounds
        scores: dict[str, float] = {}
        if is_last or state.rounds_done % config.evaluate_every == 0:
            scores, state.best = self._evaluation.score_candidates(
                result.candidates, state.rounds_done, state.best
            )
            if state.best.round == state.rounds_done:
                self._write_best()
        evaluated = time.monotonic()
        line: dict[str, Any] = {
            "round": state.rounds_done,
            "num_rounds": config.num_server_rounds,
            **scores,
            "best_round": state.best.round,
            "best_val_accuracy": state.best.accuracy,
            "train_loss": weighted_mean(replies, traffic.losses),
            "lr": config.learning_rate(round_index),
            "t": Sharpness.at(round_index, config.num_server_rounds, 0, 1).t,
            "layers": layer_figures(result.layers, replies, traffic),
            **traffic.figures(replies, self._nominal_bytes, self._failed_attempts),
            "quarantined": sorted(caught),
        }
        if config.robust == "trimmed-mean":
            line["trimmed"] = possible_trim(planned_trim(config), len(replies))
        if state.accountant:
            line["epsilon"] = state.accountant.epsilon()
        line |= {
            "seconds": {
                "train": round(traffic.train_seconds, 3),
                "aggregate": round(combined - started, 3),
                "evaluate": round(evaluated - combined, 3),
            },
            "elapsed_seconds": state.elapsed_seconds(),
        }
        self._failed_attempts = []
        self.directory.append_metrics(line)
        self._trackers.round_finished(line)
        if is_last or self.rounds_done % self.config.checkpoint_every == 0:
            self._save_checkpoint(previous)
        return line

    def _write_best(self) -> None:
        self.directory.write_state(
            _BEST, self.best.state, {"round": str(self.best.round)}
        )

    def finish(self, *, stopped: str | None = None) -> dict[str, Any]:
        """Score the best model on the test half, once; write models and summary.

        Parameters
        ----------
        stopped : why the run ends before its last round, if it does.
        """
        if not self.best.state and not stopped:
            raise RunError("the run ended before any model was evaluated")
        self.directory.write_state(
            f"final{_SUFFIX}", self.broadcast, {"round": str(self.rounds_done)}
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
            summary |= self._evaluation.report(self.best)
            summary["best_sha256"] = state_hash(self.best.state)
        if self._state.accountant:
            summary |= {
                "epsilon": self._state.accountant.epsilon(),
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


def stored_config(config: RunConfig) -> RunConfig:
    """Return the config of the run to be resumed, or the given one for a new run."""
    if not config.resume:
        return config
    path = Path(config.resume).expanduser().resolve()
    stored = RunDirectory.open(path).read_json("config.json")["config"]
    return RunConfig.from_mapping(stored | {"resume": str(path)}, complete=False)


def _slug(name: str) -> str:
    kept = "".join(c if c.isalnum() or c in "-." else "-" for c in name)
    return kept.strip("-.")[-40:].lstrip("-.") or "run"

"""The server's side of a run, without Flower: one round after the other."""

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence

from fedbnn_core.aggregation.robust import planned_trim, possible_trim
from fedbnn_core.arrays import Arrays
from fedbnn_core.binary.surrogate import Sharpness
from fedbnn_core.config import RunConfig
from fedbnn_core.errors import RunError
from fedbnn_core.methods.base import RoundResult
from fedbnn_core.reporting.tracking import RunTrackers
from fedbnn_core.runs.directory import RunDirectory
from fedbnn_core.runs.metrics import FailedAttempt, RoundMetrics, Summary
from fedbnn_core.server.attempt import RoundAttempt
from fedbnn_core.server.checkpoint import CheckpointFolder
from fedbnn_core.server.context import RunContext
from fedbnn_core.server.evaluation import BestModel, RunEvaluation
from fedbnn_core.server.finishing import finish_run, write_best
from fedbnn_core.server.record import RoundRecord, layer_metrics, weighted_mean
from fedbnn_core.server.reply import Reply, clip_replies
from fedbnn_core.server.round_messages import RoundMessages
from fedbnn_core.server.sampling import sample_clients
from fedbnn_core.server.state import ServerState
from fedbnn_core.server.validation import ReplyRules

__all__ = ["ServerRun"]

_log = logging.getLogger(__name__)


class ServerRun:
    """One federated run as the server sees it; `opening.open_run` makes it.

    A round is one or more attempts: `begin_attempt` draws the clients, the caller sends
    them `messages.order` and gives their replies to the attempt, `end_attempt`
    aggregates.

    Parameters
    ----------
    context : what stays the same.
    state : what changes from round to round.
    checkpoints : where the state is saved.
    evaluation : scores the models.
    trackers : get the metrics of every round; None: nobody does.
    notes : what a person should know about how the run was resumed.
    """

    def __init__(
        self,
        context: RunContext,
        state: ServerState,
        *,
        checkpoints: CheckpointFolder,
        evaluation: RunEvaluation,
        trackers: RunTrackers | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.context = context
        self.notes = list(notes)
        self._state = state
        self._checkpoints = checkpoints
        self._evaluation = evaluation
        self._trackers = trackers
        self._nominal = context.method.nominal_bytes
        self.messages = RoundMessages(context.method, state)
        self._own_examples: Mapping[int, int] = {}
        self._tried: set[int] = set()
        """Clients asked in earlier attempts at the current round."""
        self._failed_attempts: list[FailedAttempt] = []

    @property
    def config(self) -> RunConfig:
        """The run's config."""
        return self.context.config

    @property
    def directory(self) -> RunDirectory:
        """Where the run writes."""
        return self.context.directory

    @property
    def broadcast(self) -> Arrays:
        """The state that the next round starts from; `messages` says what is sent."""
        return self._state.broadcast

    @property
    def rounds_done(self) -> int:
        """How many rounds are over."""
        return self._state.rounds_done

    @property
    def is_done(self) -> bool:
        """Whether all rounds are over."""
        return self.rounds_done >= self.config.num_server_rounds

    @property
    def best(self) -> BestModel:
        """The best model so far."""
        return self._state.best

    def elapsed_seconds(self) -> float:
        """Return the run's time so far, that before a resume included."""
        return self._state.elapsed_seconds()

    def admit_examples(self, counts: Mapping[int, int]) -> None:
        """Note how many images of their own devices say they hold; 0 means none."""
        self._own_examples = counts

    def rules_for(self, client: int) -> ReplyRules:
        """Return what an acceptable reply of a client looks like."""
        return self.context.rules_for(client, self._own_examples.get(client, 0))

    def begin_attempt(self, available: Sequence[int]) -> RoundAttempt:
        """Draw the clients of the next round and wait for their replies.

        Clients in quarantine are excluded as long as the others make a quorum; when
        that has failed, they are let in to fill the round. In a private run this spends
        their privacy.

        Parameters
        ----------
        available : the connected clients.
        """
        wanted = self.config.clients_per_round + self.config.over_selection
        quorum, _ = self.needed_replies(len(available))
        needed = wanted if self._failed_attempts else quorum
        asked = sample_clients(
            self._state.quarantine.admitted(available, self.rounds_done, needed),
            wanted,
            seed=self.config.seed,
            round_index=self.rounds_done,
            attempt=len(self._failed_attempts),
            tried=self._tried,
        )
        self._tried |= set(asked)
        if self._state.accountant:
            self._state.accountant.record(asked)
        quorum, enough = self.needed_replies(len(asked))
        return RoundAttempt(
            asked,
            quorum=quorum,
            wanted=enough,
            folder=self.directory.path,
            on_change=self._write_progress,
        )

    def needed_replies(self, asked: int) -> tuple[int, int]:
        """Return (quorum, replies after which a round ends) for clients asked."""
        wanted = min(asked, self.config.clients_per_round)
        return max(1, math.ceil(self.config.quorum * wanted)), wanted

    def _write_progress(self, attempt: RoundAttempt) -> None:
        rejected = len(attempt.record.rejected)
        self.directory.write_progress(
            round_number=self.rounds_done + 1,
            clients=len(attempt.asked),
            done=attempt.accepted + rejected,
            rejected=rejected,
        )

    def end_attempt(
        self, attempt: RoundAttempt, *, bytes_up: int = 0, bytes_down: int = 0
    ) -> RoundMetrics | None:
        """Finish the round with the replies that came, or note that they are too few.

        Parameters
        ----------
        attempt : of `begin_attempt`.
        bytes_up, bytes_down : what travelled.

        Returns
        -------
        RoundMetrics or None
            None below the quorum: the round is tried again with other clients.

        Raises
        ------
        RunError
            That was the last attempt, or a file cannot be written.
        """
        attempt.record.bytes_down = bytes_down
        replies = attempt.close(bytes_up=bytes_up)
        if not attempt.has_quorum:
            self._fail(attempt, [reply.partition_id for reply in replies])
            return None
        return self._finish_round(replies, attempt.record)

    def _fail(self, attempt: RoundAttempt, accepted: Sequence[int]) -> None:
        round_number, config = self.rounds_done + 1, self.config
        _log.warning(
            "Round %d: %d usable replies, %d are needed",
            round_number,
            len(accepted),
            attempt.quorum,
        )
        quarantined = self._note_conduct(attempt.record, good=accepted)
        self._failed_attempts.append(attempt.record.failed(accepted, quarantined))
        if len(self._failed_attempts) > config.max_round_retries:
            raise RunError(
                f"round {round_number} had too few usable replies in "
                f"{len(self._failed_attempts)} attempts (quorum {config.quorum:g} "
                f"of {config.clients_per_round}); everything is saved in "
                f"{self.directory.path}, go on with `fedbnn resume` when the clients "
                "are well"
            )

    def _note_conduct(self, record: RoundRecord, good: Iterable[int]) -> list[int]:
        """Return the clients that are in quarantine from here on."""
        return self._state.quarantine.record(
            self.rounds_done,
            good=good,
            bad=[rejection.client for rejection in record.rejected],
        )

    def _finish_round(
        self, replies: Sequence[Reply], record: RoundRecord
    ) -> RoundMetrics:
        """Aggregate the replies, evaluate if it is time, write metrics, checkpoint."""
        config, state = self.config, self._state
        previous, round_index = state.broadcast, state.rounds_done
        started = time.monotonic()
        result = self._aggregate(replies, previous)
        aggregated = time.monotonic()
        caught = {c for failed in self._failed_attempts for c in failed.quarantined}
        good = [reply.partition_id for reply in replies]
        caught |= set(self._note_conduct(record, good=good))
        state.broadcast = result.broadcast
        state.rounds_done += 1
        scores = self._evaluate(result)
        evaluated = time.monotonic()
        metrics = RoundMetrics(
            round=state.rounds_done,
            num_rounds=config.num_server_rounds,
            scores=scores,
            best_round=state.best.round,
            best_val_accuracy=state.best.accuracy,
            train_loss=weighted_mean(replies, lambda reply: reply.loss),
            lr=config.learning_rate(round_index),
            t=Sharpness.at(round_index, config.num_server_rounds, 0, 1).t,
            layers=layer_metrics(result.layers, replies),
            update_norm=weighted_mean(replies, lambda reply: reply.update_norm),
            **record.participation(replies, self._nominal, self._failed_attempts),
            **self.messages.bits_per_weight(),
            quarantined=sorted(caught),
            trimmed=self._trimmed(len(replies)),
            epsilon=state.accountant.epsilon() if state.accountant else None,
            seconds={
                "train": round(record.train_seconds, 3),
                "aggregate": round(aggregated - started, 3),
                "evaluate": round(evaluated - aggregated, 3),
            },
            elapsed_seconds=state.elapsed_seconds(),
        )
        self._failed_attempts = []
        self._tried.clear()
        self.directory.metrics.append(metrics)
        if self._trackers:
            self._trackers.round_finished(metrics)
        if self.is_done or self.rounds_done % config.checkpoint_every == 0:
            self._checkpoints.save(state.to_checkpoint(self.context, previous=previous))
        return metrics

    def _aggregate(self, replies: Sequence[Reply], broadcast: Arrays) -> RoundResult:
        config = self.config
        if config.robust == "clip":
            limit = config.robust_clip_norm
            replies = clip_replies(replies, broadcast, max_norm=limit)
        return self.context.method.aggregate(replies, broadcast)

    def _evaluate(self, result: RoundResult) -> dict[str, float]:
        """Return the scores of a round that is evaluated, and keep the best model."""
        state = self._state
        if not self.is_done and state.rounds_done % self.config.evaluate_every:
            return {}
        scores, state.best = self._evaluation.score_candidates(
            result.candidates, state.rounds_done, state.best
        )
        if state.best.round == state.rounds_done:
            write_best(self.directory, state.best)
        return scores

    def _trimmed(self, replies: int) -> int | None:
        """Return how many values were trimmed at each end; say if too few."""
        if self.config.robust != "trimmed-mean":
            return None
        planned = planned_trim(self.config)
        trimmed = possible_trim(planned, replies)
        if trimmed < planned:
            _log.warning(
                "Round %d: %d replies are too few to trim %d of them at each end, as "
                "trim-fraction asks for; %d were trimmed",
                *(self.rounds_done, replies, planned, trimmed),
            )
        return trimmed

    def finish(self, *, stopped: str | None = None) -> Summary:
        """Write models and summary, see `finish_run`, and give the directory free.

        Parameters
        ----------
        stopped : why the run ends before its last round, if it does.
        """
        summary = finish_run(
            self.context,
            self._state,
            self._evaluation,
            stopped=stopped,
            failed_attempts=self._failed_attempts,
        )
        if self._trackers:
            self._trackers.run_finished(summary)
        self.directory.release()
        return summary

"""Finish a run: score the best model once on the test half, write what is left behind.

A 1-bit model is scored packed, from the very bytes of ``model.fbnn``, wherever it was
trained.

A finished run has ``best.safetensors``, ``final.safetensors``, ``summary.json`` and,
if its best model has a packed form, ``model.fbnn``.
"""

import logging
from collections.abc import Sequence

from fedbnn_core.errors import FedBNNError, RunError
from fedbnn_core.export.pack import write_packed
from fedbnn_core.runs.directory import PACKED_MODEL, RunDirectory
from fedbnn_core.runs.metrics import FailedAttempt, Summary
from fedbnn_core.server.context import RunContext
from fedbnn_core.server.evaluation import BestModel, RunEvaluation
from fedbnn_core.server.state import ServerState, state_hash

__all__ = ["BEST", "SUFFIX", "finish_run", "write_best"]

SUFFIX = ".safetensors"
BEST = f"best{SUFFIX}"
_FINAL = f"final{SUFFIX}"
_log = logging.getLogger(__name__)


def write_best(directory: RunDirectory, best: BestModel) -> None:
    """Write the best model so far."""
    directory.write_state(BEST, best.state, {"round": str(best.round)})


def finish_run(
    context: RunContext,
    state: ServerState,
    evaluation: RunEvaluation,
    *,
    stopped: str | None = None,
    failed_attempts: Sequence[FailedAttempt] = (),
) -> Summary:
    """Write final state, packed model and summary.

    Parameters
    ----------
    context, state, evaluation : of the run.
    stopped : why the run ends before its last round, if it does.
    failed_attempts : those at the round in which it was stopped.

    Raises
    ------
    RunError
        No round was evaluated, or a file cannot be written.
    """
    config, directory, best = context.config, context.directory, state.best
    if not best.state and not stopped:
        raise RunError("the run ended before any model was evaluated")
    directory.write_state(_FINAL, state.broadcast, {"round": str(state.rounds_done)})
    scores = {}
    if best.state:
        packed = _write_packed(context, evaluation, best)
        scores = evaluation.report(best, packed) | {
            "best_sha256": state_hash(best.state)
        }
        if packed is not None:
            scores["one_bit_bytes"] = len(packed)
    accountant = state.accountant
    summary = Summary(
        status="stopped" if stopped else "completed",
        method=config.method,
        model=config.model,
        dataset=config.dataset,
        partition=config.partition,
        rounds=state.rounds_done,
        clients=context.num_partitions,
        reason=stopped or "",
        failed_attempts=list(failed_attempts),
        epsilon=accountant.epsilon() if accountant else None,
        delta=config.privacy_delta if accountant else None,
        final_sha256=state_hash(state.broadcast),
        seconds=state.elapsed_seconds(),
        directory=str(directory.path),
        **scores,
    )
    directory.write_summary(summary)
    return summary


def _write_packed(
    context: RunContext, evaluation: RunEvaluation, best: BestModel
) -> bytes | None:
    """Write ``model.fbnn`` and return its content, or say why there is none."""
    if not context.method.binary:
        _log.info(
            "The run has no packed model: %s trains a float network",
            context.config.method,
        )
        return None
    try:
        content = evaluation.pack(best, class_names=context.dataset.class_names)
        write_packed(content, context.directory.path / PACKED_MODEL)
    except (FedBNNError, OSError) as error:
        _log.warning("The run has no packed model: %s", error)
        return None
    return content

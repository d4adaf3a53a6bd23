"""What a run knows between two rounds, to and from a checkpoint."""

import hashlib
import math
import time
from dataclasses import dataclass, field

import numpy as np

from fedbnn_core import __version__
from fedbnn_core.arrays import Arrays
from fedbnn_core.errors import RunError
from fedbnn_core.server.checkpoint import Checkpoint
from fedbnn_core.server.context import RunContext
from fedbnn_core.server.evaluation import BestModel
from fedbnn_core.server.privacy import ClientAccountant
from fedbnn_core.server.quarantine import Quarantine

__all__ = ["ServerState", "state_hash"]


@dataclass
class ServerState:
    """The model, the best model and the books that are kept on the clients."""

    broadcast: Arrays
    """w_t, which the next round's clients get."""
    quarantine: Quarantine
    """Who is excluded for a while."""
    accountant: ClientAccountant | None = None
    """The privacy spent, in a private run."""
    rounds_done: int = 0
    best: BestModel = field(default_factory=BestModel)
    _earlier_seconds: float = 0.0
    _started_at: float = field(default_factory=time.monotonic)

    def elapsed_seconds(self) -> float:
        """Return the run's time so far, that before a resume included."""
        return round(self._earlier_seconds + time.monotonic() - self._started_at, 3)

    def to_checkpoint(self, context: RunContext, *, previous: Arrays) -> Checkpoint:
        """Return all that a resumed run needs.

        Parameters
        ----------
        context : its method's server half may keep arrays between rounds, and the
            checkpoint points into its directory's metrics.
        previous : what this round's clients got; empty before the first round.
        """
        best = self.best
        return Checkpoint(
            round=self.rounds_done,
            weights=self.broadcast,
            previous=previous,
            best=best.state,
            best_round=best.round,
            method=context.method.server_state(),
            facts={
                # Sampling has no state: it follows from seed, round and attempt.
                "seed": context.config.seed,
                "names": list(self.broadcast),
                "best_accuracy": best.accuracy,
                "best_loss": best.loss if math.isfinite(best.loss) else None,
                "quarantine": self.quarantine.to_json(),
                "releases": self.accountant.releases() if self.accountant else 0,
                "metrics": context.directory.metrics.position(),
                "elapsed_seconds": self.elapsed_seconds(),
                "fedbnn_version": __version__,
            },
        )

    def restore(self, checkpoint: Checkpoint, context: RunContext) -> bool:
        """Go back to a checkpoint, the metrics too; tell if these were intact.

        The privacy spent is not taken back: the accountant must know it already.
        """
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
        context.method.load_server_state(checkpoint.method)
        self.quarantine.load_json(facts["quarantine"])
        if self.accountant and self.accountant.releases() < facts["releases"]:
            raise RunError(
                f"{context.directory.path} once noted {facts['releases']} private "
                f"updates and now only {self.accountant.releases()}: its privacy.jsonl "
                "was cut, and so the privacy spent is not known; restore the file or "
                "start a new run"
            )
        self._earlier_seconds = facts["elapsed_seconds"]
        return context.directory.metrics.rewind(facts["metrics"], checkpoint.round)


def state_hash(state: Arrays) -> str:
    """Return the SHA-256 of a state's names, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(state):
        array = state[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()

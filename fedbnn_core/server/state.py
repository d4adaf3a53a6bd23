"""What a run knows between two rounds, to and from a checkpoint."""

import hashlib
import math
import time
from dataclasses import dataclass, field

import numpy as np

from fedbnn_core import __version__
from fedbnn_core.arrays import Arrays
from fedbnn_core.config import RunConfig
from fedbnn_core.errors import RunError
from fedbnn_core.methods.base import Method
from fedbnn_core.runs.directory import RunDirectory
from fedbnn_core.server.checkpoint import Checkpoint
from fedbnn_core.server.evaluation import BestModel
from fedbnn_core.server.quarantine import Quarantine
from fedbnn_core.training.privacy import ClientAccountant

__all__ = ["RunState", "state_hash"]


@dataclass
class RunState:
    """The model, the best model and the books that are kept on the clients."""

    broadcast: Arrays
    """w_t, which the next round's clients get."""
    quarantine: Quarantine
    """Who is left out for a while."""
    accountant: ClientAccountant | None = None
    """The privacy spent, in a private run."""
    rounds_done: int = 0
    best: BestModel = field(default_factory=BestModel)
    _earlier_seconds: float = 0.0
    _started_at: float = field(default_factory=time.monotonic)

    def elapsed_seconds(self) -> float:
        """Return the run's time so far, that before a resume included."""
        return round(self._earlier_seconds + time.monotonic() - self._started_at, 3)

    def to_checkpoint(
        self,
        config: RunConfig,
        *,
        previous: Arrays,
        method: Method,
        directory: RunDirectory,
    ) -> Checkpoint:
        """Return all that a resumed run needs.

        Parameters
        ----------
        config : the run's config.
        previous : what this round's clients got; empty before the first round.
        method : its server half may keep arrays between rounds.
        directory : whose metrics the checkpoint points into.
        """
        best = self.best
        return Checkpoint(
            round=self.rounds_done,
            weights=self.broadcast,
            previous=previous,
            best=best.state,
            best_round=best.round,
            method=method.server_state(),
            facts={
                # Sampling has no state: it follows from seed, round and attempt.
                "seed": config.seed,
                "names": list(self.broadcast),
                "best_accuracy": best.accuracy,
                "best_loss": best.loss if math.isfinite(best.loss) else None,
                "quarantine": self.quarantine.to_json(),
                "releases": self.accountant.releases() if self.accountant else 0,
                "metrics": directory.metrics_position(),
                "elapsed_seconds": self.elapsed_seconds(),
                "fedbnn_version": __version__,
            },
        )

    def restore(
        self, checkpoint: Checkpoint, *, method: Method, directory: RunDirectory
    ) -> bool:
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
        method.load_server_state(checkpoint.method)
        self.quarantine.load_json(facts["quarantine"])
        if self.accountant and self.accountant.releases() < facts["releases"]:
            raise RunError(
                f"{directory.path} once noted {facts['releases']} private updates and "
                f"now only {self.accountant.releases()}: its privacy.jsonl was cut, "
                "and so the privacy spent is not known; restore the file or start a "
                "new run"
            )
        self._earlier_seconds = facts["elapsed_seconds"]
        return directory.rewind_metrics(facts["metrics"], checkpoint.round)


def state_hash(state: Arrays) -> str:
    """Return the SHA-256 of a state's names, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(state):
        array = state[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()

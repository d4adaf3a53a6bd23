"""What a round records: who took part, what travelled, and the clients' means."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedbnn_core.methods.template import PerClientBytes
from fedbnn_core.runs.metrics import FailedAttempt, Rejection
from fedbnn_core.server.reply import Reply

__all__ = ["RoundRecord", "layer_metrics", "weighted_mean"]


@dataclass
class RoundRecord:
    """Who took part in an attempt at a round, and what travelled."""

    asked: list[int] = field(default_factory=list)
    """The clients that were sent the round's message."""
    rejected: list[Rejection] = field(default_factory=list)
    """Replies that did not count."""
    missing: list[int] = field(default_factory=list)
    """Clients that had not replied when the attempt ended."""
    bytes_up: int = 0
    """Of every reply that came, counted or not, late ones of earlier rounds too."""
    bytes_down: int = 0
    train_seconds: float = 0.0
    """Time in which the clients trained."""

    def failed(
        self, accepted: Sequence[int], quarantined: Sequence[int]
    ) -> FailedAttempt:
        """Return this attempt as one that ended below the quorum."""
        return FailedAttempt(
            asked=self.asked,
            accepted=sorted(accepted),
            rejected=self.rejected,
            missing=self.missing,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            quarantined=quarantined,
        )

    def participation(
        self,
        replies: Sequence[Reply],
        nominal: PerClientBytes,
        failed_attempts: Sequence[FailedAttempt] = (),
    ) -> dict[str, Any]:
        """Return the fields of `RoundMetrics` on who took part and what travelled.

        Parameters
        ----------
        replies : those that count.
        nominal : one client's traffic as papers count it: no reply is in vain there.
        failed_attempts : the round's earlier attempts; their bytes are part of it.
        """
        attempts: list[RoundRecord | FailedAttempt] = [self, *failed_attempts]
        return {
            "clients": [reply.partition_id for reply in replies],
            "examples": sum(reply.num_examples for reply in replies),
            "asked": self.asked,
            "missing": self.missing,
            "rejected": self.rejected,
            "bytes_up": sum(attempt.bytes_up for attempt in attempts),
            "bytes_down": sum(attempt.bytes_down for attempt in attempts),
            "failed_attempts": list(failed_attempts),
            "bytes_up_nominal": nominal.up * len(replies),
            "bytes_down_nominal": nominal.down * len(self.asked),
        }


def layer_metrics(
    layers: Mapping[str, Mapping[str, float]], replies: Sequence[Reply]
) -> dict[str, dict[str, float | None]]:
    """Return the aggregated scalars of each layer and the clients' mean cos(phi)."""

    def cosine(number: int) -> Callable[[Reply], float | None]:
        def of_reply(reply: Reply) -> float | None:
            told = reply.layer_metrics.get("cos-phi", ())
            return told[number] if number < len(told) else None

        return of_reply

    return {
        name: {**scalars, "cos_phi": weighted_mean(replies, cosine(number))}
        for number, (name, scalars) in enumerate(layers.items())
    }


def weighted_mean(
    replies: Sequence[Reply], value: Callable[[Reply], float | None]
) -> float | None:
    """Return the mean of a value, weighted by examples, over those who told it."""
    told = [(reply.num_examples, value(reply)) for reply in replies]
    known = [(count, number) for count, number in told if number is not None]
    total = sum(count for count, _ in known)
    if total == 0:
        return None
    return sum(number * count for count, number in known) / total

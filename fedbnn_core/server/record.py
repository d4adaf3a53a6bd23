"""What a round cost, who took part, and whose reply did not count."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedbnn_core.methods.template import PerClientBytes
from fedbnn_core.server.reply_store import StoredReply
from fedbnn_core.server.validation import JudgedReply

__all__ = ["RoundTraffic", "layer_figures", "weighted_mean"]


@dataclass
class RoundTraffic:
    """What a round cost and who took part, as the transport saw it."""

    bytes_up: int = 0
    """Of every reply that came, counted or not, late ones of earlier rounds too."""
    bytes_down: int = 0
    train_seconds: float = 0.0
    losses: dict[int, float] = field(default_factory=dict)
    """Training loss by partition id."""
    layer_metrics: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    """Per-layer figures by partition id."""
    update_norms: dict[int, float] = field(default_factory=dict)
    """Norm of (reply - broadcast) by partition id."""
    rejected: list[dict[str, Any]] = field(default_factory=list)
    """Replies that did not count: client and reason."""
    asked: list[int] = field(default_factory=list)
    """The clients that were sent the round's message."""
    missing: list[int] = field(default_factory=list)
    """Clients that had not replied when the round ended."""

    def accept(self, judged: JudgedReply) -> StoredReply:
        """Note an accepted reply's figures and return what is combined."""
        client = judged.reply.partition_id
        self.update_norms[client] = judged.update_norm
        if judged.loss is not None:
            self.losses[client] = judged.loss
        self.layer_metrics[client] = judged.layer_metrics
        return judged.reply

    def reject(self, client: int, reason: str) -> None:
        """Note a reply that does not count."""
        self.rejected.append({"client": client, "reason": reason})

    def attempt(self) -> dict[str, Any]:
        """Return who took part and what travelled in an attempt that failed."""
        return {
            "asked": self.asked,
            "accepted": sorted(self.update_norms),
            "rejected": self.rejected,
            "missing": self.missing,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }

    def figures(
        self,
        replies: Sequence[StoredReply],
        nominal: PerClientBytes,
        failed_attempts: Sequence[Mapping[str, Any]] = (),
    ) -> dict[str, Any]:
        """Return who took part and what travelled, for the metrics of a round.

        Parameters
        ----------
        replies : those that count.
        nominal : one client's traffic as papers count it: no reply is in vain there.
        failed_attempts : what `attempt` returned for the round's earlier attempts;
            their bytes are part of the round's.
        """
        attempts = [self.attempt(), *failed_attempts]
        return {
            "clients": [reply.partition_id for reply in replies],
            "examples": sum(reply.num_examples for reply in replies),
            "asked": self.asked,
            "missing": self.missing,
            "rejected": self.rejected,
            "update_norm": weighted_mean(replies, self.update_norms),
            "bytes_up": sum(attempt["bytes_up"] for attempt in attempts),
            "bytes_down": sum(attempt["bytes_down"] for attempt in attempts),
            "failed_attempts": list(failed_attempts),
            "bytes_up_nominal": nominal.up * len(replies),
            "bytes_down_nominal": nominal.down * len(self.asked),
        }


def layer_figures(
    layers: Mapping[str, Mapping[str, float]],
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


def weighted_mean(
    replies: Sequence[StoredReply], values: Mapping[int, float]
) -> float | None:
    """Return the example-weighted mean of a figure over the clients that gave it."""
    known = [reply for reply in replies if reply.partition_id in values]
    total = sum(reply.num_examples for reply in known)
    if total == 0:
        return None
    return sum(values[r.partition_id] * r.num_examples for r in known) / total

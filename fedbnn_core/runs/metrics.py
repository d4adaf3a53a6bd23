"""What a run tells of itself: a line for every round, and a summary at its end.

`RoundMetrics` is a line of ``metrics.jsonl``, `Summary` is ``summary.json``. Reading
is lenient: what an older run did not write, or wrote as null, has its default.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["FailedAttempt", "Rejection", "RoundMetrics", "Summary"]

_SCORE_PREFIX = "val_"
_VARIANT_SUFFIX = "_test_accuracy"


@dataclass(frozen=True)
class Rejection:
    """A reply that did not count."""

    client: int
    reason: str
    size_bytes: int = 0
    """What travelled of it."""

    def to_json(self) -> dict[str, Any]:
        """Return it as it is written."""
        size = {"bytes": self.size_bytes} if self.size_bytes else {}
        return {"client": self.client, "reason": self.reason, **size}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Rejection":
        """Return what `to_json` wrote."""
        return cls(
            content.get("client", -1),
            str(content.get("reason", "")),
            content.get("bytes", 0),
        )


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt at a round that ended below the quorum."""

    asked: Sequence[int] = ()
    """The clients that were sent the round's message."""
    accepted: Sequence[int] = ()
    """Those whose reply could be used."""
    rejected: Sequence[Rejection] = ()
    """Replies that could not."""
    missing: Sequence[int] = ()
    """Clients that had not replied when the attempt ended."""
    bytes_up: int = 0
    bytes_down: int = 0
    quarantined: Sequence[int] = ()
    """Clients that are excluded for a while from here on."""

    def to_json(self) -> dict[str, Any]:
        """Return it as it is written."""
        return {
            "asked": list(self.asked),
            "accepted": list(self.accepted),
            "rejected": [rejection.to_json() for rejection in self.rejected],
            "missing": list(self.missing),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "quarantined": list(self.quarantined),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "FailedAttempt":
        """Return what `to_json` wrote."""
        known = _present(cls, content)
        known["rejected"] = _rejections(content)
        return cls(**known)


@dataclass(frozen=True)
class RoundMetrics:
    """One round, as in a line of ``metrics.jsonl``."""

    round: int
    """Its number, from 1."""
    num_rounds: int = 0
    """Rounds of the whole run."""
    scores: Mapping[str, float | None] = field(default_factory=dict)
    """``val_accuracy``, ``val_loss`` and the same of the method's other candidates
    with their name behind; empty if the round was not evaluated."""
    best_round: int = 0
    """The best round so far; 0 before the first evaluation."""
    best_val_accuracy: float | None = None
    train_loss: float | None = None
    """Mean over the clients' examples; None if no client told."""
    lr: float | None = None
    t: float | None = None
    """The clock of the sign's sharpness."""
    layers: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """alpha, beta, lambda and cos_phi of each binary layer."""
    clients: Sequence[int] = ()
    """Those whose reply counts."""
    examples: int = 0
    """Samples they trained on, summed."""
    asked: Sequence[int] = ()
    missing: Sequence[int] = ()
    rejected: Sequence[Rejection] = ()
    update_norm: float | None = None
    """Mean L2 norm of the clients' updates."""
    bytes_up: int = 0
    """As travelled, failed attempts included."""
    bytes_down: int = 0
    failed_attempts: Sequence[FailedAttempt] = ()
    bytes_up_nominal: int | None = None
    """As papers count: trained numbers of the replies that count, 4 bytes each."""
    bytes_down_nominal: int | None = None
    bits_up: float | None = None
    """Of one client's message as it travels, per trained number of the network."""
    bits_down: float | None = None
    quarantined: Sequence[int] = ()
    trimmed: int | None = None
    """Values cut at each end, with the trimmed mean."""
    epsilon: float | None = None
    """Privacy spent so far, in a private run."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time of the round's parts: train, aggregate, evaluate."""
    elapsed_seconds: float = 0.0
    """Time since the run's start."""

    @property
    def val_accuracy(self) -> float | None:
        """Accuracy of the round's model on the validation half, if it was scored."""
        return self.scores.get("val_accuracy")

    @property
    def total_seconds(self) -> float:
        """Return the time of all parts of the round."""
        return sum(self.seconds.values())

    def to_json(self) -> dict[str, Any]:
        """Return the line as it is written."""
        content: dict[str, Any] = {}
        for key in (f.name for f in fields(self)):
            value = getattr(self, key)
            if key == "scores":
                content |= value
            elif key in ("bits_up", "bits_down", "trimmed", "epsilon"):
                content |= {} if value is None else {key: value}
            elif key in ("rejected", "failed_attempts"):
                content[key] = [part.to_json() for part in value]
            else:
                content[key] = list(value) if isinstance(value, tuple) else value
        return content

    @classmethod
    def from_json(cls, content: Any) -> "RoundMetrics":
        """Return what `to_json` wrote, by this version or an older one.

        Raises
        ------
        ValueError
            The content is no round at all.
        """
        if not isinstance(content, Mapping) or type(content.get("round")) is not int:
            raise ValueError("it does not tell the number of a round")
        known = _present(cls, content)
        known["scores"] = {
            key: value
            for key, value in content.items()
            if key.startswith(_SCORE_PREFIX)
        }
        known["rejected"] = _rejections(content)
        known["failed_attempts"] = _attempts(content)
        return cls(**known)


@dataclass(frozen=True)
class Summary:
    """The result of a run, as in ``summary.json``."""

    status: str = "completed"
    """"completed", or "stopped" if the run ended before its last round."""
    method: str = ""
    model: str = ""
    dataset: str = ""
    partition: str = ""
    rounds: int = 0
    """Rounds done."""
    clients: int = 0
    """Parts into which the training data is divided."""
    reason: str = ""
    """Why it was stopped."""
    failed_attempts: Sequence[FailedAttempt] = ()
    """Those at the round in which it was stopped."""
    best_round: int | None = None
    """None if no model was evaluated; then there is no score below either."""
    val_accuracy: float | None = None
    val_loss: float | None = None
    test_accuracy: float | None = None
    """Of the best round's model on the test half, 0 to 1."""
    test_loss: float | None = None
    variants: Mapping[str, float] = field(default_factory=dict)
    """Test accuracy of other forms of the model, such as "ptb"."""
    test_confusion: Sequence[Sequence[int]] = ()
    """Counts by (true class, predicted class)."""
    float32_bytes: int = 0
    one_bit_bytes: int | None = None
    """Of ``model.fbnn``; counted if there is none, None for a float model."""
    paper_bytes: int | None = None
    """Size of the 1-bit model by the paper's rule: parameters as float32, / 32."""
    best_sha256: str = ""
    """Hash of the best model's arrays."""
    epsilon: float | None = None
    delta: float | None = None
    """Privacy of each client; None if the run was not private."""
    final_sha256: str = ""
    """Hash of the arrays after the last round."""
    seconds: float = 0.0
    directory: str = ""
    """The run directory, on the machine that wrote it."""

    @property
    def stopped(self) -> bool:
        """Return whether the run ended before its last round."""
        return self.status == "stopped"

    def to_json(self) -> dict[str, Any]:
        """Return the summary as it is written; what does not apply has no key."""
        absent: set[str] = set()
        if not self.stopped:
            absent |= {"reason", "failed_attempts"}
        if self.best_round is None:
            absent |= _OF_THE_BEST
        if self.delta is None:
            absent |= {"epsilon", "delta"}
        if self.paper_bytes is None:
            absent |= {"paper_bytes"}
        content: dict[str, Any] = {}
        for key in (f.name for f in fields(self) if f.name not in absent):
            value = getattr(self, key)
            if key == "variants":
                content |= {
                    f"{n}{_VARIANT_SUFFIX}": score for n, score in value.items()
                }
            elif key == "failed_attempts":
                content[key] = [attempt.to_json() for attempt in value]
            else:
                content[key] = list(value) if isinstance(value, tuple) else value
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Summary":
        """Return what `to_json` wrote, by this version or an older one."""
        known = _present(cls, content)
        known["variants"] = {
            key.removesuffix(_VARIANT_SUFFIX): value
            for key, value in content.items()
            if key.endswith(_VARIANT_SUFFIX) and value is not None
        }
        known["failed_attempts"] = _attempts(content)
        return cls(**known)


_OF_THE_BEST = {
    "best_round",
    "val_accuracy",
    "val_loss",
    "test_accuracy",
    "test_loss",
    "variants",
    "test_confusion",
    "float32_bytes",
    "one_bit_bytes",
    "paper_bytes",
    "best_sha256",
}


def _present(
    cls: type[FailedAttempt | RoundMetrics | Summary], content: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of a class that the content has and that are not null."""
    names = (f.name for f in fields(cls))
    return {name: content[name] for name in names if content.get(name) is not None}


def _rejections(content: Mapping[str, Any]) -> list[Rejection]:
    return [Rejection.from_json(entry) for entry in content.get("rejected") or ()]


def _attempts(content: Mapping[str, Any]) -> list[FailedAttempt]:
    return [
        FailedAttempt.from_json(entry) for entry in content.get("failed_attempts") or ()
    ]

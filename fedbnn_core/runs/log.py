"""The lines of a run's log that commands read: written and parsed here.

The server app writes them through Flower's logger, which puts a level and perhaps
colours in front. Names, problems and errors come from clients: they must never pass
for such a line, so they go through `one_line` first.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbnn_core.errors import printable
from fedbnn_core.runs.metrics import RoundMetrics
from fedbnn_core.runs.progress import seconds_left

__all__ = [
    "RoundNews",
    "directory_in",
    "directory_line",
    "one_line",
    "plain_line",
    "round_in",
    "round_line",
    "split_level",
    "stopped_in",
    "stopped_line",
]

_DIRECTORY = "Run directory: "
_STOPPED = "Stopped: "
_LONGEST = 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) *: +")
_ROUND = re.compile(r"round +(\d+)/(\d+)\b(.*)")
_ACCURACY = re.compile(r"\bval +([\d.]+) %")


def one_line(text: object) -> str:
    """Return text of a client for a log: one line, printable, of bounded length."""
    printable = (c if c.isprintable() else " " for c in str(text))
    return " ".join("".join(printable).split())[:_LONGEST]


def plain_line(line: str) -> str:
    """Return a line of Flower's log for a person: no colours, no INFO in front."""
    level, message = split_level(line)
    return printable(message if level == "INFO" else _COLOUR.sub("", line).strip())


def split_level(line: str) -> tuple[str, str]:
    """Return level and message of a line of Flower's log, without colours.

    The level is empty for a line that does not begin a message.
    """
    text = _COLOUR.sub("", line).rstrip()
    match = _LEVEL.match(text)
    return (match[1], text[match.end() :]) if match else ("", text)


def directory_line(path: Path) -> str:
    """Return the line, of level INFO, that names the run directory."""
    return f"{_DIRECTORY}{path}"


def directory_in(line: str) -> Path | None:
    """Return the run directory if this line of the log names it."""
    level, message = split_level(line)
    if level != "INFO" or not message.startswith(_DIRECTORY):
        return None
    return Path(message.removeprefix(_DIRECTORY))


def stopped_line(reason: object) -> str:
    """Return the line, of level ERROR, that tells why a run ends early."""
    return f"{_STOPPED}{reason}"


def stopped_in(line: str) -> str | None:
    """Return why the run ended early if this line of the log tells it."""
    level, message = split_level(line)
    if level != "ERROR" or not message.startswith(_STOPPED):
        return None
    return message.removeprefix(_STOPPED)


@dataclass(frozen=True)
class RoundNews:
    """What the log tells of a round."""

    round: int
    num_rounds: int
    val_accuracy: float | None
    """In percent; None if the round was not evaluated."""


def round_line(rounds: Sequence[RoundMetrics]) -> str:
    """Return the line, of level INFO, that tells of a round.

    Parameters
    ----------
    rounds : the metrics of this round and some before it, the newest last; they tell
        how long the rest will take.
    """
    newest = rounds[-1]
    left = seconds_left(rounds) or 0.0
    width = len(str(newest.num_rounds))
    parts = [f"round {newest.round:>{width}}/{newest.num_rounds}"]
    if newest.val_accuracy is not None:
        best = newest.best_val_accuracy or 0.0
        parts.append(f"val {100 * newest.val_accuracy:5.2f} %")
        parts.append(f"(best {100 * best:.2f} % in round {newest.best_round})")
    if newest.train_loss is not None:
        parts.append(f"loss {newest.train_loss:.3f}")
    if newest.epsilon is not None:
        parts.append(f"epsilon {newest.epsilon:.2f}")
    if newest.rejected:
        parts.append(f"{len(newest.rejected)} replies rejected")
    parts.append(f"{newest.total_seconds:.1f} s")
    parts.append(f"{int(left // 60)}:{int(left % 60):02d} left")
    return "  ".join(parts)


def round_in(line: str) -> RoundNews | None:
    """Return what this line of the log tells, if it is that of a round."""
    level, message = split_level(line)
    match = _ROUND.match(message)
    if level != "INFO" or match is None:
        return None
    found = _ACCURACY.search(match[3])
    return RoundNews(int(match[1]), int(match[2]), float(found[1]) if found else None)

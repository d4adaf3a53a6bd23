"""The file ``metrics.jsonl``: one line a round, written by one, read by many.

There is one reader. A last line that is incomplete or damaged is not there yet: it may
still be written, or a resumed run will write it again. Any other damaged line is
excluded and reported with its number.
"""

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbnn_core.files import append_durably, remove_leftovers, write_durably
from fedbnn_core.runs.metrics import RoundMetrics

__all__ = ["METRICS", "MetricsReader", "MetricsWriter", "json_ready"]

METRICS = "metrics.jsonl"
_log = logging.getLogger(__name__)


class MetricsWriter:
    """Append rounds, and know how far this run has come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = 0
        self._hash = hashlib.sha256()

    def append(self, metrics: RoundMetrics) -> None:
        """Append a round and flush it to disk.

        JSON has no NaN: numbers that are not finite become null.
        """
        content = (json.dumps(json_ready(metrics.to_json())) + "\n").encode()
        append_durably(self.path, content)
        self._bytes += len(content)
        self._hash.update(content)

    def position(self) -> dict[str, Any]:
        """Return size and SHA-256 of what this run has written."""
        return {"bytes": self._bytes, "sha256": self._hash.hexdigest()}

    def rewind(self, position: Mapping[str, Any], rounds_done: int) -> bool:
        """Cut the file back to a checkpoint's position; tell if it was intact.

        What follows the position comes from rounds that will be done again. Damaged
        metrics are left as they are, but for those rounds and an incomplete last line.
        """
        remove_leftovers(self.path.parent)
        content = self.path.read_bytes() if self.path.is_file() else b""
        kept = content[: position["bytes"]]
        intact: bool = hashlib.sha256(kept).hexdigest() == position["sha256"]
        if not intact:
            lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
            kept = b"".join(li for li in lines if not _is_later(li, rounds_done))
        write_durably(self.path, kept)
        self._bytes = len(kept)
        self._hash = hashlib.sha256(kept)
        return intact


class MetricsReader:
    """Read what the file gains, a little at a time.

    Attributes
    ----------
    rounds : list of RoundMetrics
        All rounds so far.
    damages : list of str
        The damaged lines so far, each with its number and what is wrong.
    generation : int
        Counts how often the file was begun anew, as by a resumed run; rounds already
        seen may then have changed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rounds: list[RoundMetrics] = []
        self.damages: list[str] = []
        self.generation = 0
        self._inode = 0
        self._offset = 0
        self._lines = 0

    def poll(self, *, ended: bool = False) -> bool:
        """Read new lines; return whether there were any, or the file was rewound.

        Parameters
        ----------
        ended : nobody will write to the file any more, so a damaged or incomplete last
            line is reported, too.
        """
        try:
            with self.path.open("rb") as file:
                size, inode = self.path.stat().st_size, self.path.stat().st_ino
                rewound = inode != self._inode or size < self._offset
                if rewound:
                    self._begin_anew(inode)
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return False
        *complete, rest = content.split(b"\n")
        if ended and rest:
            complete.append(rest)
        before = self._offset
        for number, text in enumerate(complete, start=1):
            try:
                self.rounds.append(RoundMetrics.from_json(json.loads(text)))
            except (ValueError, TypeError, AttributeError) as error:
                if number == len(complete) and not ended:
                    break
                self._report(error)
            self._offset += len(text) + 1
            self._lines += 1
        return self._offset > before or rewound

    def _begin_anew(self, inode: int) -> None:
        self.rounds, self.damages = [], []
        self._inode, self._offset, self._lines = inode, 0, 0
        self.generation += 1

    def _report(self, error: Exception) -> None:
        damage = f"line {self._lines + 1} of {self.path} is damaged: {error}"
        self.damages.append(damage)
        _log.warning("%s; it is excluded", damage)


def json_ready(content: Any) -> Any:
    """Return content with None in place of NaN and infinities, which JSON lacks."""
    if isinstance(content, float) and not math.isfinite(content):
        return None
    if isinstance(content, Mapping):
        return {key: json_ready(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [json_ready(value) for value in content]
    return content


def _is_later(line: bytes, rounds_done: int) -> bool:
    """Tell if a line is that of a round after so many."""
    try:
        return bool(json.loads(line)["round"] > rounds_done)
    except (ValueError, TypeError, KeyError):
        return False

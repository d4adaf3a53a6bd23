"""The log of a run, which its server app writes and other commands read.

Some of its lines tell a command where the run is and how it stands. Names, problems
and errors come from clients: they must never pass for such a line.
"""

import re
from pathlib import Path

__all__ = [
    "DIRECTORY_PREFIX",
    "STOPPED_PREFIX",
    "directory_in",
    "one_line",
    "split_level",
]

DIRECTORY_PREFIX = "Run directory: "
"""How the server app's log names the run directory."""
STOPPED_PREFIX = "Stopped: "
"""How it begins the reason why a run ends before its last round."""
_LONGEST = 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) *: +")


def one_line(text: object) -> str:
    """Return text of a client for a log: one line, printable, of bounded length."""
    printable = (c if c.isprintable() else " " for c in str(text))
    return " ".join("".join(printable).split())[:_LONGEST]


def split_level(line: str) -> tuple[str, str]:
    """Return level and message of a line of Flower's log, without colours.

    The level is empty for a line that does not begin a message.
    """
    text = _COLOUR.sub("", line).rstrip()
    match = _LEVEL.match(text)
    return (match[1], text[match.end() :]) if match else ("", text)


def directory_in(line: str) -> Path | None:
    """Return the run directory if this line of the log names it."""
    level, message = split_level(line)
    if level != "INFO" or not message.startswith(DIRECTORY_PREFIX):
        return None
    return Path(message.removeprefix(DIRECTORY_PREFIX))

"""The exceptions that FedBNN raises for what a user or a client did."""

import unicodedata
from collections.abc import Sequence

__all__ = [
    "ConfigError",
    "DataError",
    "ExportError",
    "FedBNNError",
    "FleetError",
    "FormatError",
    "ReplyError",
    "RunError",
    "WireError",
    "printable",
]


def printable(text: str) -> str:
    """Return text from outside for a person: nothing in it can steer a terminal.

    Line breaks and spaces of any width stay.
    """
    return "".join(
        c if c.isprintable() or c == "\n" or unicodedata.category(c) == "Zs" else "?"
        for c in text
    )


class FedBNNError(Exception):
    """Base of all FedBNN errors; the message says what to do.

    Parts of it may come from outside, such as a file's name.
    """

    def __str__(self) -> str:
        """Return the message as it may be shown."""
        return printable(super().__str__())


class ConfigError(FedBNNError):
    """A config key is unknown or its value has the wrong type or range."""


class DataError(FedBNNError):
    """A dataset is missing, damaged or unsuitable."""


class ExportError(ConfigError):
    """A network has parts that no packed file can hold.

    Parameters
    ----------
    problems : each names a layer, its type and the reason.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        lines = "".join(f"\n- {problem}" for problem in problems)
        super().__init__(f"the network cannot be exported:{lines}")


class FleetError(FedBNNError):
    """A fleet, its credentials or a connection in it is not as it must be."""


class FormatError(FedBNNError):
    """A model file is damaged, truncated or of an unknown version."""


_MAX_REASON_CHARACTERS = 300


class ReplyError(FedBNNError):
    """A client's reply cannot be used.

    Parts of the reason come from the client, so it is trimmed: one line that can be
    printed, of at most 300 characters.
    """

    def __init__(self, reason: str) -> None:
        line = " ".join(reason[: 4 * _MAX_REASON_CHARACTERS].split())
        if len(line) > _MAX_REASON_CHARACTERS:
            line = line[: _MAX_REASON_CHARACTERS - 4] + " ..."
        super().__init__("".join(c if c.isprintable() else "?" for c in line))


class RunError(FedBNNError):
    """A run cannot start or go on."""


class WireError(FedBNNError):
    """A coded message is not what the sender of this place in a run can have sent."""

"""What one device may ask of the SuperLink, and the answer when it asks for more."""

from dataclasses import dataclass

import grpc

__all__ = ["FleetLimits", "Refused", "exhausted", "invalid"]


@dataclass(frozen=True)
class FleetLimits:
    """What one device may send."""

    request_bytes: int = 16 * 2**20
    """One request or answer: Flower cuts arrays into 5 MiB, a bundle has 10 MiB."""
    reply_bytes: int = 2**30
    """All objects of one reply."""
    spare_objects: int = 256
    """Objects that any reply may announce."""
    objects_per_object: int = 8
    """How many more for each object of the message that it answers."""
    objects: int = 4096
    """Objects of one reply, whatever it answers."""
    depth: int = 16
    """Levels of a reply's tree; Flower's have 5."""
    pushes: int = 4
    """How often a message may be answered: a lost answer is sent again."""
    remembered: int = 16
    """Messages and replies of a device that are remembered, the newest ones."""
    remembered_objects: int = 2**16
    """Objects sent by the server whose children are remembered, the newest ones."""
    calls: int = 32
    """Calls of a device at once, those that wait for their turn included."""
    turns: int = 2
    """Calls of a device at once that reach the database."""
    pull_seconds: float = 0.1
    """Between two questions of a device whether there is a message for it."""


class Refused(Exception):  # noqa: N818  an answer to a device, not our error
    """A call that is not passed on to Flower, with gRPC's code and the reason."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def invalid(reason: str) -> Refused:
    """Return the refusal of what makes no sense."""
    return Refused(grpc.StatusCode.INVALID_ARGUMENT, reason)


def exhausted(reason: str) -> Refused:
    """Return the refusal of what is too much."""
    return Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)

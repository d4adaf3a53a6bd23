"""What a method's messages look like: known before the first one is sent."""

from dataclasses import dataclass

__all__ = ["PerClientBytes"]


@dataclass(frozen=True)
class PerClientBytes:
    """What one client receives and sends in a round."""

    up: int
    down: int

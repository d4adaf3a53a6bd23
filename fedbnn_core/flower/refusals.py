"""Put into words why Flower's SuperNode ended, and say what to do."""

import re
from dataclasses import dataclass

from fedbnn_core.flower.version import FLOWER_VERSION

__all__ = ["LOST_HEARTBEAT", "Explanation", "explain"]

LOST_HEARTBEAT = "in send_node_heartbeat"
"""In the trace of a heartbeat that the server answered with an error.

Flower sends no more then, and the server takes the device for gone while it goes on
asking for work.
"""
_EXIT_CODE = re.compile(r"Exit Code: (\d+)")


@dataclass(frozen=True)
class Explanation:
    """A SuperNode's end, in words."""

    text: str
    may_pass: bool = False
    """Whether the same attempt may succeed a little later."""
    is_certain: bool = True
    """Whether the log said so."""


# The order counts: the first phrase that a line contains explains it.
_PHRASES = (
    (
        "Invalid timestamp",
        Explanation(
            "the server refused this device because their clocks differ by more than "
            "5 minutes; set the clock, for example with: timedatectl set-ntp true"
        ),
    ),
    (
        "Failed to activate SuperNode",
        Explanation(
            "the server does not accept this device's key. Either the device is not "
            "in the fleet (any more): ask the operator for 'fedbnn fleet add' and a "
            "new bundle; or another device uses the same bundle, and each needs its "
            "own; or the server has not noticed yet that an earlier connection of it "
            "ended, which takes a minute",
            may_pass=True,
        ),
    ),
    (
        LOST_HEARTBEAT,
        Explanation("the server failed to take a sign of life", may_pass=True),
    ),
    (
        "must be registered via the CLI",
        Explanation("the server admits devices with a key only; start with the bundle"),
    ),
    (
        "Invalid node ID",
        Explanation(
            "the server no longer accepts this device; it seems to have been removed "
            "from the fleet",
            may_pass=True,
        ),
    ),
    (
        "Missing authentication metadata",
        Explanation("the server admits devices with a key only; start with the bundle"),
    ),
)
_CODES = {
    "302": Explanation(
        "the key in the bundle cannot be read; copy the bundle from the server again"
    ),
    "305": Explanation(
        "the connection to the server failed; its reason is in the log above",
        may_pass=True,
    ),
    "606": Explanation(
        "server and device run different versions of Flower; install the same FedBNN "
        f"on both sides (it brings Flower {FLOWER_VERSION})"
    ),
}


def explain(log: list[str]) -> Explanation:
    """Return in words why a SuperNode with this log ended."""
    for phrase, explanation in _PHRASES:
        if any(phrase in line for line in log):
            return explanation
    for line in reversed(log):
        if (match := _EXIT_CODE.search(line)) and match[1] in _CODES:
            return _CODES[match[1]]
    last = "\n".join(log[-10:])
    return Explanation(
        f"Flower's SuperNode ended; its last words:\n{last}", is_certain=False
    )

"""Exclude for a while the clients that keep sending bad replies."""

from collections.abc import Collection, Iterable
from typing import Any

__all__ = ["Quarantine"]


class Quarantine:
    """Count bad replies in a row per client.

    Parameters
    ----------
    after : bad replies in a row until a client is excluded; 0 means never.
    rounds : for how many rounds.
    """

    def __init__(self, *, after: int, rounds: int) -> None:
        self._after = after
        self._rounds = rounds
        self._strikes: dict[int, int] = {}
        self._until: dict[int, int] = {}

    def record(
        self, round_index: int, *, good: Iterable[int], bad: Iterable[int]
    ) -> list[int]:
        """Note a round's replies; return the clients that are excluded from now on.

        A good reply clears a client's record. One that returns from quarantine is
        excluded again after its next bad reply.
        """
        for client in good:
            self._strikes.pop(client, None)
        caught = []
        for client in bad:
            self._strikes[client] = self._strikes.get(client, 0) + 1
            if 0 < self._after <= self._strikes[client]:
                self._until[client] = round_index + 1 + self._rounds
                caught.append(client)
        return caught

    def excluded(self, round_index: int) -> set[int]:
        """Return the clients that may not take part in a round."""
        return {c for c, until in self._until.items() if round_index < until}

    def admitted(
        self, available: Collection[int], round_index: int, needed: int
    ) -> list[int]:
        """Return the available clients in good standing, sorted.

        If they are fewer than needed, those whose time ends first come back early: a
        round with doubtful clients is better than none, their replies are validated.
        """
        out = self.excluded(round_index)
        admitted = [client for client in available if client not in out]
        missing = min(needed, len(available)) - len(admitted)
        if missing > 0:
            waiting = sorted(set(available) & out, key=lambda c: (self._until[c], c))
            admitted += waiting[:missing]
        return sorted(admitted)

    def to_json(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "strikes": sorted(self._strikes.items()),
            "until": sorted(self._until.items()),
        }

    def load_json(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._strikes = {int(c): int(n) for c, n in state["strikes"]}
        self._until = {int(c): int(n) for c, n in state["until"]}

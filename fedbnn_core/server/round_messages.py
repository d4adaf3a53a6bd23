"""What the clients of the next round get, and how their replies are read."""

from typing import Any

from fedbnn_core.arrays import Arrays
from fedbnn_core.errors import ConfigError, ReplyError, WireError
from fedbnn_core.methods import method_class, method_names
from fedbnn_core.methods.base import Method
from fedbnn_core.server.state import ServerState
from fedbnn_core.wire.run_wire import FLOAT_BITS

__all__ = ["RoundMessages", "refuse_uncodable"]


class RoundMessages:
    """A run's messages; with 32 bits both ways the server's own arrays.

    Parameters
    ----------
    method : its wire codes and decodes.
    state : the server's; the round and the weights change in it.
    """

    def __init__(self, method: Method, state: ServerState) -> None:
        self._method, self._wire = method, method.wire
        self._state = state
        self._round = -1
        self._order: Arrays = {}
        self._received: Arrays = {}

    def order(self) -> Arrays:
        """Return the arrays that travel to the clients of the next round."""
        self._update()
        return self._order

    def received(self) -> Arrays:
        """Return the state that those clients read, and train from."""
        self._update()
        return self._received

    def read(self, sent: Arrays, client: int) -> Arrays:
        """Return a client's state from the arrays of its reply.

        Raises
        ------
        ReplyError
            They are not what this client can have sent in this round.
        """
        try:
            return self._wire.read_reply(
                sent,
                state=self._state.broadcast,
                received=self.received(),
                round_index=self._state.rounds_done,
                client=client,
            )
        except WireError as error:
            raise ReplyError(str(error)) from error

    def bits_per_weight(self) -> dict[str, Any]:
        """Return ``bits_up`` and ``bits_down``: one client's, over trained numbers."""
        sizes, weights = self._method.message_bytes, self._method.template.parameters
        return {
            "bits_up": round(8 * sizes.up / weights, 4),
            "bits_down": round(8 * sizes.down / weights, 4),
        }

    def _update(self) -> None:
        """Code the round's order once."""
        index = self._state.rounds_done
        if index != self._round:
            self._order = self._wire.order(self._state.broadcast, index)
            self._received = self._wire.read_order(self._order, index)
            self._round = index


def refuse_uncodable(method: Method) -> None:
    """Refuse fewer than 32 bits where they cannot be had.

    Raises
    ------
    ConfigError
        The method has a coding of its own, or its clients' updates are private.
    """
    config = method.config
    if min(config.uplink_bits, config.downlink_bits) == FLOAT_BITS:
        return
    if not method.replies_with_state:
        others = [n for n in method_names() if method_class(n).replies_with_state]
        raise ConfigError(
            f"method {config.method!r} has its own coding; set uplink-bits and "
            f"downlink-bits to {FLOAT_BITS}, or method to one of {', '.join(others)}"
        )
    if config.privacy != "none":
        raise ConfigError(
            f"privacy = {config.privacy!r} needs uplink-bits and downlink-bits "
            f"{FLOAT_BITS}: most of what a private client sends is noise, and the "
            "error of few bits grows with it; choose 32 for both, or privacy 'none'"
        )

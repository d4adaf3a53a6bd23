"""Both directions of a run: what the server sends, what clients read and answer.

The server keeps the float state w. A client reads w^, what the order's bits say, trains
from it and sends the coded change d = w_k - w^. The server puts d on its own w, so the
rounding of one order is gone with it and never adds up over rounds:

    w_k as aggregated = w + d^
"""

import numpy as np

from fedbnn_core.arrays import Arrays
from fedbnn_core.seeding import derive_seed
from fedbnn_core.wire.bits import BitCodec
from fedbnn_core.wire.codec import SERVER, Stamp

__all__ = ["FLOAT_BITS", "RunWire"]

FLOAT_BITS = 32
"""Arrays travel as they are."""


class RunWire:
    """Codes a run's messages; with 32 bits both ways it changes nothing.

    Parameters
    ----------
    state : the first state, for names, shapes and types.
    seed : the run's.
    uplink_bits : 32, 16, 8 or 1 bit per weight from a client.
    downlink_bits : 32, 16, 8 or 4 bits per weight to it.
    """

    def __init__(
        self, state: Arrays, *, seed: int, uplink_bits: int, downlink_bits: int
    ) -> None:
        self._seed = seed
        self._up, self._down = (
            None if bits == FLOAT_BITS else BitCodec(state, bits)
            for bits in (uplink_bits, downlink_bits)
        )

    @property
    def order_arrays(self) -> Arrays | None:
        """Names, shapes and types of a coded order; None: it is not coded."""
        return None if self._down is None else self._down.sent

    @property
    def reply_arrays(self) -> Arrays | None:
        """Names, shapes and types of a coded reply; None: it is not coded."""
        return None if self._up is None else self._up.sent

    def order(self, state: Arrays, round_index: int) -> Arrays:
        """Return what the server sends to the clients of a round."""
        if self._down is None:
            return state
        return self._down.encode(state, self._stamp("order", round_index, SERVER))

    def read_order(self, sent: Arrays, round_index: int) -> Arrays:
        """Return w^, the state that a client trains from.

        Raises
        ------
        WireError
            The order is not one of this run and round.
        """
        if self._down is None:
            return sent
        return self._down.decode(sent, self._stamp("order", round_index, SERVER))

    def reply(
        self, trained: Arrays, received: Arrays, *, round_index: int, client: int
    ) -> Arrays:
        """Return what a client sends.

        Parameters
        ----------
        trained : its state after training.
        received : the state of `read_order`.
        round_index : the round, from 0.
        client : its partition id.
        """
        if self._up is None:
            return trained
        with np.errstate(over="ignore", invalid="ignore"):
            changes = {n: trained[n] - received[n] for n in self._up.rounded}
        stamp = self._stamp("reply", round_index, client)
        return self._up.encode(trained | changes, stamp)

    def read_reply(
        self,
        sent: Arrays,
        *,
        state: Arrays,
        received: Arrays,
        round_index: int,
        client: int,
    ) -> Arrays:
        """Return the client's state as it is aggregated.

        Parameters
        ----------
        sent : the reply's arrays.
        state : w, which the server keeps.
        received : w^, which the client read.
        round_index, client : which reply it must be.

        Raises
        ------
        WireError
            It is not a reply of that client to that round.
        """
        if self._up is not None:
            decoded = self._up.decode(sent, self._stamp("reply", round_index, client))
            changes = {name: decoded[name] for name in self._up.rounded}
        elif self._down is not None:
            decoded = sent
            with np.errstate(over="ignore", invalid="ignore"):
                changes = {n: sent[n] - received[n] for n in self._down.rounded}
        else:
            return sent
        with np.errstate(over="ignore", invalid="ignore"):
            return decoded | {name: state[name] + d for name, d in changes.items()}

    def _stamp(self, kind: str, round_index: int, sender: int) -> Stamp:
        seed = derive_seed(self._seed, "wire", kind, round_index, sender)
        return Stamp(seed=seed, round_index=round_index, sender=sender)

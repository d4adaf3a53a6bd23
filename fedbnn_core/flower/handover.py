"""Hand a message's arguments over to the warm process: ``python -IS`` this file.

It stands in the place of ``flwr-clientapp``, which Flower starts for every message, and
uses nothing but the standard library, so that it starts in a few milliseconds. Where no
process waits, or it does not answer, it becomes the ordinary command.

Arguments: the socket's folder, then the ordinary command, then what Flower said.
"""

import json
import os
import socket
import sys
from collections.abc import Sequence

__all__ = ["ACCEPTED", "SOCKET", "hand_over"]

SOCKET = "socket"
ACCEPTED = b"1"
_PATIENCE_SECONDS = 60.0
"""The waiting process may be loading data; this is faster than to do the same here."""


def hand_over(folder: str, arguments: Sequence[str]) -> bool:
    """Return whether a process took the arguments, standard output and error.

    The answer comes from the very process that will work on the message. Once this one
    has given up waiting, nobody works on it.
    """
    here = os.open(".", os.O_RDONLY)
    try:
        # A socket's whole path may have no more than 107 bytes.
        os.chdir(folder)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_PATIENCE_SECONDS)
            connection.connect(SOCKET)
            request = json.dumps(list(arguments)).encode()
            socket.send_fds(connection, [request], [1, 2])
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(1) == ACCEPTED
    except OSError:
        return False
    finally:
        os.fchdir(here)
        os.close(here)


if __name__ == "__main__":
    if not hand_over(sys.argv[1], sys.argv[3:]):
        os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606

"""A process that is ready for messages: ``python -m client_app.warm FOLDER``.

It has torch loaded, and after a run's first training order that run's data and network,
too. For each message that is handed over at the socket in FOLDER it forks: the copy
handles the message as Flower's ``flwr-clientapp`` does, and ends. So nothing that a
message does, a crash included, is left for the next one, and its memory is given back.

This process itself starts no threads and never touches a GPU: neither survives a fork.
"""

import json
import os
import selectors
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
from flwr.supernode.cli import flwr_clientapp

from client_app import local_round
from fedbnn_core.flower.handover import ACCEPTED, SOCKET
from fedbnn_core.flower.short_waits import pull_soon

__all__ = ["main", "serve"]

_IDLE_SECONDS = 600.0
"""After so long without a message the data are given back: the process ends, and
`fedbnn device` starts an empty one."""
_REQUEST_SECONDS = 5.0
_MAX_REQUEST_BYTES = 2**16


def main() -> None:
    """Wait for messages at the socket in the folder that the arguments name."""
    pull_soon()
    with _listener(sys.argv[1]) as listener:
        serve(listener, flwr_clientapp)


def _listener(folder: str) -> socket.socket:
    """Return a socket in a folder; its path may be longer than a socket's can be."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        Path(SOCKET).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(SOCKET)
        listener.listen()
        return listener
    finally:
        os.chdir(here)


def serve(
    listener: socket.socket,
    handle: Callable[[], None],
    *,
    idle_seconds: float = _IDLE_SECONDS,
) -> None:
    """Fork for each message; return after an idle while, if data were loaded.

    Parameters
    ----------
    listener : where messages' arguments come in.
    handle : handles the message that ``sys.argv`` tells of.
    idle_seconds : the idle while.
    """
    children: dict[int, int] = {}
    loaded = False
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        last = time.monotonic()
        while True:
            events = selector.select(idle_seconds if loaded else None)
            for key, _ in events:
                if key.fileobj is listener:
                    reader, child = _take(listener, handle)
                    if child:
                        selector.register(reader, selectors.EVENT_READ)
                        children[reader] = child
                else:
                    selector.unregister(key.fileobj)
                    loaded = _end(key.fd, children.pop(key.fd)) or loaded
                last = time.monotonic()
            idle = time.monotonic() - last >= idle_seconds
            if loaded and idle and not children:
                return


def _take(listener: socket.socket, handle: Callable[[], None]) -> tuple[int, int]:
    """Fork for one message; return a pipe from the copy and its id, 0 if none."""
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(_REQUEST_SECONDS)
        try:
            content, files, _, _ = socket.recv_fds(connection, _MAX_REQUEST_BYTES, 2)
            arguments = [str(word) for word in json.loads(content)]
            output, errors = files
        except (OSError, ValueError):
            return -1, 0
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            listener.close()
            _work(connection, arguments, (output, errors), writer, handle)
        for file in (writer, output, errors):
            os.close(file)
        return reader, child


def _work(
    connection: socket.socket,
    arguments: list[str],
    output: tuple[int, int],
    report: int,
    handle: Callable[[], None],
) -> NoReturn:
    """Handle one message in the copy; report what it loads, and end."""
    code = 1
    try:
        # A group of its own: it goes on if the process that waits is killed. When
        # Flower's SuperExec ends, it ends by itself.
        os.setsid()
        for file, place in zip(output, (1, 2), strict=True):
            os.dup2(file, place)
            os.close(file)
        # If nobody waits for the answer any more, the message is handled elsewhere.
        connection.send(ACCEPTED)
        connection.close()
        local_round.on_load = lambda wanted: _report(report, wanted)
        sys.argv = ["flwr-clientapp", *arguments]
        handle()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _report(report: int, wanted: dict[str, Any]) -> None:
    with suppress(OSError):
        os.write(report, json.dumps(wanted).encode() + b"\n")


def _end(reader: int, child: int) -> bool:
    """Wait for a copy's end; load what it had loaded, and say whether it had."""
    with os.fdopen(reader, "rb") as file:
        report = file.read()
    os.waitpid(child, 0)
    if not report.endswith(b"\n"):
        return False
    threads = torch.get_num_threads()
    # No copy could use threads that were started here.
    torch.set_num_threads(1)
    try:
        local_round.load(json.loads(report.splitlines()[-1]))
    except Exception:
        traceback.print_exc()
        return False
    finally:
        torch.set_num_threads(threads)
    return True


if __name__ == "__main__":
    main()

"""Flower's processes with shorter waits: ``python -m`` this module.

The first argument is one of Flower's commands, the others are its own. Flower has no
setting for these waits, so names in its modules are replaced before it starts; the
exact version of Flower that a fleet needs makes sure that they are there. A simulation
runs with other versions, too; where a name is missing it waits as Flower does.

How long a process pauses between two looks grows with the time for which there was
nothing to do: in a run it looks often, and an idle device costs what Flower's does.
"""

import importlib
import sys
import threading
import time
from collections.abc import Iterable
from queue import Empty, SimpleQueue
from typing import Any

from fedbnn_core.flower.version import require_grpc_flower

__all__ = ["COMMANDS", "GrowingPause", "main", "pull_soon", "shorten"]

COMMANDS = {
    "flower-supernode": ("flwr.supernode.cli", "flower_supernode"),
    "flower-superexec": ("flwr.supercore.cli", "flower_superexec"),
    "flwr-clientapp": ("flwr.supernode.cli", "flwr_clientapp"),
    "flwr-simulation": ("flwr.simulation.app", "flwr_simulation"),
}
"""Module and function of each command."""
_IDLE_SECONDS = 3.0
"""What a SuperNode without a message sleeps; it sleeps less for everything else."""
_LOOK_SECONDS = 1.0
"""Between two looks at all simulated clients' messages; new ones do not wait for it."""
_REPLY_SECONDS = 0.05
"""Between two looks of a SuperNode whether its reply is there; both are in memory."""


class GrowingPause:
    """Sleep a share of the time since there was something to do.

    Parameters
    ----------
    share : of that time.
    shortest, longest : the bounds of a pause, in seconds.
    """

    def __init__(self, share: float, shortest: float, longest: float) -> None:
        self._share, self._shortest, self._longest = share, shortest, longest
        self._since = time.monotonic()

    def busy(self) -> None:
        """Note that there is something to do now."""
        self._since = time.monotonic()

    def seconds(self) -> float:
        """Return the next pause."""
        waited = time.monotonic() - self._since
        return min(self._longest, max(self._shortest, self._share * waited))


class _SuperNodeClock:
    """In the place of the module `time` in Flower's loop of a SuperNode."""

    def __init__(self) -> None:
        self._idle = GrowingPause(0.05, 0.1, _IDLE_SECONDS)

    def sleep(self, seconds: float) -> None:
        if seconds >= _IDLE_SECONDS:
            time.sleep(self._idle.seconds())
        else:
            self._idle.busy()
            time.sleep(min(seconds, _REPLY_SECONDS))


class _SuperExecClock:
    """In the place of the module `time` in Flower's loop of a SuperExec."""

    def __init__(self) -> None:
        self._idle = GrowingPause(0.01, 0.05, 1.0)

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, self._idle.seconds()))

    def launched(self, launch: Any) -> Any:
        """Return Flower's function that starts a task, with a note of it here."""

        def noting(*arguments: Any, **options: Any) -> Any:
            self._idle.busy()
            return launch(*arguments, **options)

        return noting


def shorten(command: str) -> None:
    """Shorten the waits of one of Flower's commands in this process."""
    if command == "flower-supernode":
        loop: Any = importlib.import_module("flwr.supernode.start_client_internal")
        loop.time = _SuperNodeClock()
    elif command == "flower-superexec":
        loop = importlib.import_module("flwr.supercore.superexec.run_superexec")
        clock = _SuperExecClock()
        loop.time = clock
        loop._handle_launch_result = clock.launched(loop._handle_launch_result)
    elif command == "flwr-simulation":
        loop = importlib.import_module("flwr.server.superlink.fleet.vce.vce_api")
        if hasattr(loop, "add_messages_to_queue"):
            loop.add_messages_to_queue = hand_out_messages
        return
    pull_soon()


def hand_out_messages(
    state: Any, queue: Any, nodes_mapping: Iterable[int], f_stop: threading.Event
) -> None:
    """Pass a simulation's messages on to its workers as soon as they are stored.

    In the place of Flower's function of the same arguments, which asks the state for
    every node's messages ten times a second: with 100 nodes that takes a part of a
    core, and each round begins a tenth of a second late.
    """
    stored: SimpleQueue[int] = SimpleQueue()
    store = state.store_message_ins

    def storing(message: Any) -> Any:
        result = store(message)
        stored.put(message.metadata.dst_node_id)
        return result

    state.store_message_ins = storing
    look_at = 0.0
    while not f_stop.is_set():
        nodes: Iterable[int] = ()
        if time.monotonic() >= look_at:
            # Those that were stored before this began, if there are any.
            nodes = list(nodes_mapping)
            look_at = time.monotonic() + _LOOK_SECONDS
        else:
            try:
                nodes = [stored.get(timeout=_LOOK_SECONDS / 2)]
            except Empty:
                continue
        for node in nodes:
            for message in state.get_message_ins(node_id=node, limit=1):
                queue.put(message)


def pull_soon() -> None:
    """Look soon for an object that has been announced, but is still on its way.

    Flower looks again after 1 s, 2 s, 4 s, ..., up to 500 times or two hours.
    """
    objects: Any = importlib.import_module("flwr.supercore.inflatable.inflatable_utils")
    for pull in (objects.pull_objects, objects.pull_and_inflate_object_from_tree):
        pull.__kwdefaults__.update(
            initial_backoff=0.05, backoff_cap=0.5, max_tries_per_object=20_000
        )


def main() -> None:
    """Run the command that this process's first argument names."""
    command = sys.argv[1]
    if command != "flwr-simulation":
        require_grpc_flower()
    module, function = COMMANDS[command]
    shorten(command)
    sys.argv = [command, *sys.argv[2:]]
    getattr(importlib.import_module(module), function)()


if __name__ == "__main__":
    main()

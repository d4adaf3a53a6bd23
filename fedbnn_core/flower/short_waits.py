"""Flower's device processes with shorter waits: ``python -m`` this module.

The first argument is one of Flower's commands, the others are its own. Flower has no
setting for these waits, so names in its modules are replaced before it starts; the
exact version of Flower that a fleet needs makes sure that they are there.

How long a process pauses between two looks grows with the time for which there was
nothing to do: in a run it looks often, and an idle device costs what Flower's does.
"""

import importlib
import sys
import time
from typing import Any

from fedbnn_core.flower.version import require_grpc_flower

__all__ = ["COMMANDS", "GrowingPause", "main", "pull_soon", "shorten"]

COMMANDS = {
    "flower-supernode": ("flwr.supernode.cli", "flower_supernode"),
    "flower-superexec": ("flwr.supercore.cli", "flower_superexec"),
    "flwr-clientapp": ("flwr.supernode.cli", "flwr_clientapp"),
}
"""Module and function of each command."""
_IDLE_SECONDS = 3.0
"""What a SuperNode without a message sleeps; it sleeps less for everything else."""
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
    pull_soon()


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
    require_grpc_flower()
    command = sys.argv[1]
    module, function = COMMANDS[command]
    shorten(command)
    sys.argv = [command, *sys.argv[2:]]
    getattr(importlib.import_module(module), function)()


if __name__ == "__main__":
    main()

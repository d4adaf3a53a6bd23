"""Keep a device's process for messages warm, and put launchers into Flower's path.

Flower starts ``flower-superexec`` and, for each message, ``flwr-clientapp`` by name
from its path. A folder of ours comes first there: its ``flower-superexec`` has shorter
waits, its ``flwr-clientapp`` hands the message over to a process that has torch, the
data and the network loaded and forks. Whenever that process is not there, messages are
handled as Flower does it.
"""

import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedbnn_core.flower import handover
from fedbnn_core.flower.child import flower_command, started

__all__ = ["launchers", "warm_process", "write_quick"]

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_STABLE_SECONDS = 30.0


@contextmanager
def launchers(folder: Path, *, is_warm: bool) -> Iterator[str]:
    """Write the launchers into a folder; yield the folder, to be first in the path."""
    shutil.rmtree(folder, ignore_errors=True)
    # What connects to the socket in here runs with this device's rights.
    folder.mkdir(parents=True, mode=0o700)
    write_quick(folder, "flower-superexec")
    if is_warm:
        ordinary = flower_command("flwr-clientapp")
        command = [sys.executable, "-IS", handover.__file__, str(folder), ordinary]
        _write(folder / "flwr-clientapp", command)
    else:
        write_quick(folder, "flwr-clientapp")
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_quick(folder: Path, name: str) -> None:
    """Write a launcher that runs one of Flower's commands with shorter waits."""
    quick = [sys.executable, "-P", "-m", "fedbnn_core.flower.short_waits"]
    _write(folder / name, [*quick, name])


def _write(path: Path, command: list[str]) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
    path.chmod(0o700)


@contextmanager
def warm_process(
    folder: Path, environment: Mapping[str, str], on_line: Callable[[str], None]
) -> Iterator[None]:
    """Keep a process at the socket in `folder`; start it again whenever it ends.

    Parameters
    ----------
    folder : where the socket is made.
    environment : as Flower's processes have it.
    on_line : receives every line that it says.
    """
    command = [sys.executable, "-P", "-m", "client_app.warm", str(folder)]
    ended = threading.Event()
    running: list[subprocess.Popen[str]] = []

    def keep() -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not ended.is_set():
            began = time.monotonic()
            with started(command, environment) as process:
                running[:] = [process]
                if ended.is_set():
                    return
                for line in process.stdout or ():
                    on_line(line.rstrip("\n"))
                process.wait()
            if time.monotonic() - began > _STABLE_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            ended.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    keeper = threading.Thread(target=keep, daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        for process in running:
            process.terminate()
        keeper.join()

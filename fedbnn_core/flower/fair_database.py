"""Let the SuperLink's threads use its SQLite file in the order in which they ask.

SQLite has one writer at a time. Others look again and again whether it is free, and
after 5 s get an error; a thread with one write after the other can keep them all away.
Flower's heartbeats do not survive that error: a minute later the device or the run
counts as lost. All writers are threads of one process, so here they wait in a queue.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

__all__ = ["FairLock", "fair_sessions"]


class FairLock:
    """A lock that is handed to whoever waits longest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_held = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if not self._is_held:
                self._is_held = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        turn.acquire()

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            if self._waiting:
                # It stays held, by the next one.
                self._waiting.popleft().release()
            else:
                self._is_held = False


def fair_sessions(
    session: Callable[[Any], AbstractContextManager[Any]],
) -> Callable[[Any], AbstractContextManager[Any]]:
    """Return a method that opens a session of Flower's when it is the thread's turn.

    A session inside another one belongs to the same turn.
    """
    lock, inside = FairLock(), threading.local()

    @contextmanager
    def in_turn(storage: Any) -> Iterator[Any]:
        if getattr(inside, "any", False):
            with session(storage) as opened:
                yield opened
            return
        with lock:
            inside.any = True
            try:
                with session(storage) as opened:
                    yield opened
            finally:
                inside.any = False

    return in_turn

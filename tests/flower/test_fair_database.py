"""Threads that write to Flower's database one after the other."""

import threading
import time

import pytest
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.sql_mixin import SqlMixin
from sqlalchemy import text

from fedbnn_core.flower.fair_database import FairLock, fair_sessions


def test_the_lock_is_handed_to_whoever_waits_longest():
    lock, order, started = FairLock(), [], []

    def work(number):
        started.append(number)
        with lock:
            order.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    with lock:
        for number, thread in enumerate(threads):
            thread.start()
            while len(lock._waiting) <= number:
                time.sleep(0.001)
    # Who comes now has to wait, although the lock has just been given back.
    work(8)
    for thread in threads:
        thread.join(20)
    assert order == list(range(9))
    assert not lock._is_held


def test_one_thread_at_a_time():
    lock, inside, most = FairLock(), [0], [0]

    def work():
        for _ in range(200):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1]


def test_an_exception_gives_the_lock_back():
    lock = FairLock()
    with pytest.raises(KeyError), lock:
        raise KeyError
    with lock:
        pass


def test_a_busy_writer_does_not_keep_the_others_away(tmp_path, monkeypatch):
    """Flower's own storage: without the queue a patient writer gets an error."""
    monkeypatch.setattr(SqlMixin, "session", fair_sessions(SqlMixin.session))
    store = SqlObjectStore(str(tmp_path / "state.db"))
    store.initialize()
    with store.session() as session:
        session.execute(text("CREATE TABLE t (n INTEGER)"))
    ended, turns = threading.Event(), []

    def write(number):
        with store.session() as session:
            session.execute(text("INSERT INTO t VALUES (:n)"), {"n": number})
            # A session inside belongs to the same turn.
            assert store.query("SELECT COUNT(*) AS n FROM t")[0]["n"] > 0
            time.sleep(0.02)
        turns.append(number)

    def busy():
        while not ended.is_set():
            write(0)

    thread = threading.Thread(target=busy)
    thread.start()
    while not turns:
        time.sleep(0.001)
    for _ in range(5):
        before = len(turns)
        write(1)
        # At most the one that was at work, and the one that asked before.
        assert turns[before:].count(0) <= 3
    ended.set()
    thread.join(20)

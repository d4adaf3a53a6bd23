"""The waits of Flower's device processes, against its own modules."""

import importlib
import inspect
import threading
import time
from queue import Queue
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from fedbnn_core.flower import short_waits
from fedbnn_core.flower.short_waits import GrowingPause, shorten


def test_a_pause_is_a_share_of_the_time_without_work(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(short_waits.time, "monotonic", lambda: now[0])
    pause = GrowingPause(0.05, 0.1, 3.0)
    seconds = []
    for waited in (0, 2, 10, 60, 1000):
        now[0] = 100.0 + waited
        seconds.append(pause.seconds())
    assert seconds == pytest.approx([0.1, 0.1, 0.5, 3.0, 3.0])
    pause.busy()
    assert pause.seconds() == pytest.approx(0.1)


def test_flower_s_own_waits_are_replaced(monkeypatch):
    node = importlib.import_module("flwr.supernode.start_client_internal")
    executor = importlib.import_module("flwr.supercore.superexec.run_superexec")
    objects = importlib.import_module("flwr.supercore.inflatable.inflatable_utils")
    # Each name must be there in the installed Flower, and is put back afterwards.
    monkeypatch.setattr(node, "time", node.time)
    monkeypatch.setattr(executor, "time", executor.time)
    handle = executor._handle_launch_result
    monkeypatch.setattr(executor, "_handle_launch_result", handle)
    for pull in (objects.pull_objects, objects.pull_and_inflate_object_from_tree):
        monkeypatch.setattr(pull, "__kwdefaults__", dict(pull.__kwdefaults__))
    slept = []
    monkeypatch.setattr(short_waits.time, "sleep", slept.append)
    for command in ("flower-supernode", "flower-superexec"):
        shorten(command)
    node.time.sleep(3)
    node.time.sleep(0.5)
    executor.time.sleep(1.0)
    assert slept == pytest.approx([0.1, 0.05, 0.05], abs=0.01)
    # An object that comes after a moment is there after a moment, not after 1 s.
    monkeypatch.undo()
    monkeypatch.setattr(
        objects.pull_objects,
        "__kwdefaults__",
        dict(objects.pull_objects.__kwdefaults__),
    )
    short_waits.pull_soon()
    ready = time.monotonic() + 0.2

    def pull(name):
        if time.monotonic() < ready:
            raise objects.ObjectUnavailableError(name)
        return b"content"

    assert objects.pull_objects(["a"], pull) == {"a": b"content"}
    assert time.monotonic() - ready < 0.4


class State:
    """Keeps messages as Flower's state of a simulation does."""

    def __init__(self):
        self.messages, self.looks = {}, 0

    def store_message_ins(self, message):
        self.messages.setdefault(message.metadata.dst_node_id, []).append(message)
        return "id"

    def get_message_ins(self, node_id, limit):
        self.looks += 1
        waiting = self.messages.get(node_id, [])
        taken, waiting[:] = waiting[:limit], waiting[limit:]
        return taken


def message_to(node):
    return SimpleNamespace(metadata=SimpleNamespace(dst_node_id=node))


def test_a_simulation_hands_messages_out_at_once_and_each_once():
    state, queue, ended = State(), Queue(), threading.Event()
    early = message_to(3)
    state.store_message_ins(early)
    nodes = range(100)
    thread = threading.Thread(
        target=short_waits.hand_out_messages, args=(state, queue, nodes, ended)
    )
    thread.start()
    try:
        assert queue.get(timeout=5) is early
        waits = []
        for node in (7, 7, 42):
            message = message_to(node)
            began = time.monotonic()
            assert state.store_message_ins(message) == "id"
            assert queue.get(timeout=5) is message
            waits.append(time.monotonic() - began)
        # Flower's own loop would take a twentieth of a second on average.
        assert min(waits) < 0.04
    finally:
        ended.set()
        thread.join(5)
    assert not thread.is_alive()
    assert queue.empty()


def test_flower_s_simulation_has_the_loop_that_is_replaced(monkeypatch):
    loop = importlib.import_module("flwr.server.superlink.fleet.vce.vce_api")
    before = loop.add_messages_to_queue
    monkeypatch.setattr(loop, "add_messages_to_queue", before)
    wanted = list(inspect.signature(before).parameters)
    shorten("flwr-simulation")
    assert loop.add_messages_to_queue is short_waits.hand_out_messages
    assert list(inspect.signature(loop.add_messages_to_queue).parameters) == wanted

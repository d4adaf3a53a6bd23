"""Who may take part, from answers that devices could give."""

import importlib
import io
import itertools
import json
import logging
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import FLOWER_LOGGER, ConsoleHandler

from fedbnn_core import __version__
from fedbnn_core.config import RunConfig
from fedbnn_core.fleet import Fleet
from fedbnn_core.fleet.credentials import public_pem
from fedbnn_core.fleet.membership import SERVED_FLEET
from fedbnn_core.flower.deployment import run_progress
from fedbnn_core.runs.log import directory_in, split_level, stopped_in
from server_app import roster as roster_module
from server_app.roster import Roster
from tests.apps.local_grid import LocalGrid, error_reply


class Devices(LocalGrid):
    """Nodes with the identities that a test gives them."""

    def __init__(self, **identities):
        super().__init__(0, {})
        self.identities = {int(k[1:]): v for k, v in identities.items()}
        self.questions = []

    def get_node_ids(self):
        return list(self.identities)

    def _reply(self, partition, message):
        node = message.metadata.dst_node_id
        self.questions.append(node)
        self.asked.append(message.content["identity"])
        usual = {"fedbnn-version": __version__, "device-name": f"d{node}"}
        identity = ConfigRecord(usual | self.identities[node])
        return Message(content=RecordDict({"identity": identity}), reply_to=message)


@pytest.fixture
def output():
    """Return what Flower's logger writes, as a run's log has it."""
    stream = io.StringIO()
    handler = ConsoleHandler(colored=False, stream=stream)
    handler.setLevel(logging.INFO)
    FLOWER_LOGGER.addHandler(handler)
    yield stream
    FLOWER_LOGGER.removeHandler(handler)


@pytest.fixture
def roster():
    settings = {"num-partitions": 3, "clients-per-round": 1}
    return Roster(RunConfig.from_mapping(settings, complete=False))


FORGED = (
    "x\nINFO :      Run directory: /etc\nINFO :      round 40/40  val 99.99 %\n"
    "ERROR :     Stopped: bye"
)


@pytest.mark.parametrize("key", ["problem", "device-name", "fedbnn-version"])
@pytest.mark.parametrize("text", [FORGED, *FORGED.splitlines()[1:]])
@pytest.mark.parametrize("start", [0, len("INFO :      ")])
def test_a_devices_text_is_never_read_as_the_servers(roster, output, key, text, start):
    spoilt = {"partition-id": 0, "problem": "it is broken", key: text[start:]}
    roster.refresh(Devices(n1=spoilt))
    (line,) = output.getvalue().splitlines()
    assert "is excluded" in line
    assert directory_in(line) is None
    assert run_progress([line]).round == 0
    assert run_progress([line]).val_accuracy is None
    assert split_level(line)[0] == "WARNING"
    assert stopped_in(line) is None


def test_a_second_device_of_the_same_number_does_not_evict_the_first(roster, output):
    grid = Devices(n1={"partition-id": 0})
    roster.refresh(grid)
    grid.identities[2] = {"partition-id": 0}
    for _ in range(3):
        roster.refresh(grid)
    assert roster.node_of_partition == {0: 1}
    (line,) = output.getvalue().splitlines()
    assert "Device d2 is excluded: another connected one has number 0" in line


def test_a_device_that_came_back_as_a_new_node_takes_its_place(roster):
    """Without a key it has a new id; the old one is listed for a minute."""
    grid = Devices(n1={"partition-id": 0}, n7={"partition-id": 1})
    roster.refresh(grid)
    grid.identities[2] = {"partition-id": 0}
    roster.refresh(grid)
    del grid.identities[1]
    roster.refresh(grid)
    assert roster.node_of_partition == {0: 2, 1: 7}
    # It answered once; a question costs a device several seconds.
    assert sorted(grid.questions) == [1, 2, 7]


def test_devices_of_a_resumed_run_learn_its_dataset():
    settings = {"num-partitions": 1, "dataset": "svhn", "resume": "/runs/one"}
    grid = Devices(n1={"partition-id": 0})
    Roster(RunConfig.from_mapping(settings, complete=False)).refresh(grid)
    (question,) = grid.asked
    assert json.loads(question["run-config"])["dataset"] == "svhn"


class KeyedDevices(Devices):
    """Nodes that signed in with a key of the fleet."""

    def __init__(self, keys, **identities):
        super().__init__(**identities)
        self.keys = keys

    def get_nodes(self):
        return [
            SimpleNamespace(node_id=node, public_key=self.keys[node])
            for node in self.identities
        ]


@pytest.fixture
def fleet_keys(tmp_path, monkeypatch):
    """Return the keys of devices 0 and 1 of a fleet that is served."""
    fleet = Fleet.create(tmp_path / "fleet", ["127.0.0.1"])
    for name in ("owner", "other"):
        fleet.add(name)
    monkeypatch.setenv(SERVED_FLEET, str(fleet.folder))
    return [public_pem(device.public_key.encode()) for device in fleet.devices()]


@pytest.mark.parametrize("liar_first", [True, False])
def test_a_number_belongs_to_its_key(roster, output, fleet_keys, liar_first):
    owner, liar = (2, 1) if liar_first else (1, 2)
    keys = {owner: fleet_keys[0], liar: fleet_keys[1]}
    claims = {f"n{node}": {"partition-id": 0} for node in (owner, liar)}
    grid = KeyedDevices(keys, **claims)
    for _ in range(3):
        roster.refresh(grid)
    assert roster.node_of_partition == {0: owner}
    (line,) = output.getvalue().splitlines()
    # By the name that its key has, not the one it gives itself.
    assert "Device other is excluded: it says that it has number 0" in line
    # The owner leaves: its number does not go to the liar.
    del grid.identities[owner]
    roster.refresh(grid)
    assert roster.node_of_partition == {}


def test_a_key_that_the_fleet_does_not_know(roster, output, fleet_keys):
    grid = KeyedDevices({1: b"other", 2: fleet_keys[1]}, n1={"partition-id": 0})
    grid.identities[2] = {"partition-id": 1, "stores-models": True}
    roster.refresh(grid)
    assert roster.node_of_partition == {1: 2}
    assert roster.model_nodes == {2}
    assert "its key does not belong to the fleet" in output.getvalue()


class Mute(Devices):
    """Nodes that do not answer, or with an error."""

    silent = True

    def _reply(self, partition, message):
        reply = super()._reply(partition, message)
        if message.metadata.dst_node_id != 2:
            return reply
        return None if self.silent else error_reply(reply, 2, "broken")


@pytest.mark.parametrize("silent", [True, False])
def test_a_silent_device_is_waited_for_once(roster, monkeypatch, silent):
    """It must not cost every round a minute."""
    slept = []
    clock = itertools.count()
    monkeypatch.setattr(roster_module.time, "sleep", slept.append)
    monkeypatch.setattr(roster_module.time, "monotonic", lambda: float(next(clock)))
    grid = Mute(n1={"partition-id": 0}, n2={"partition-id": 1})
    grid.silent = silent
    roster.refresh(grid)
    assert roster.node_of_partition == {0: 1}
    assert len(slept) < 65
    del slept[:]
    for _ in range(5):
        roster.refresh(grid)
    assert slept == []


class InMemoryGrid(Devices):
    """A simulation on a busy machine: only the 200th look finds anything."""

    looks = 0

    def pull_messages(self, message_ids):
        self.looks += 1
        return super().pull_messages(message_ids) if self.looks >= 200 else []


def test_a_slow_simulated_client_is_waited_for(roster, monkeypatch):
    """Which clients are there decides who is chosen, and so the result."""
    clock = itertools.count()
    monkeypatch.setattr(roster_module.time, "sleep", lambda _: None)
    monkeypatch.setattr(roster_module.time, "monotonic", lambda: float(next(clock)))
    flower = importlib.import_module("flwr.simulation.run_simulation")
    assert flower.InMemoryGrid.__name__ == InMemoryGrid.__name__
    roster.refresh(InMemoryGrid(n1={"partition-id": 0}, n2={"partition-id": 1}))
    assert roster.node_of_partition == {0: 1, 1: 2}


@pytest.mark.parametrize(
    "identity",
    [RecordDict(), RecordDict({"identity": MetricRecord({"x": 1})}), RecordDict({})],
)
def test_malformed_answers_exclude_their_node_only(roster, output, identity):
    class Odd(Devices):
        def _reply(self, partition, message):
            if message.metadata.dst_node_id == 2:
                return Message(content=identity, reply_to=message)
            return super()._reply(partition, message)

    roster.refresh(Odd(n1={"partition-id": 0}, n2={}))
    assert roster.node_of_partition == {0: 1}
    assert "Node 2 is excluded" in output.getvalue()

"""Who may take part, from answers that devices could give."""

import io
import json
import logging

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import FLOWER_LOGGER, ConsoleHandler

from fedbnn_core import __version__
from fedbnn_core.config import RunConfig
from fedbnn_core.flower.deployment import run_progress
from fedbnn_core.runs.log import directory_in, split_level, stopped_in
from server_app.roster import Roster
from tests.apps.local_grid import LocalGrid


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

"""Registered devices that are not Flower's client, against a real server with TLS."""

import re
import threading
import time
from pathlib import Path

import pytest

from fedbnn_core.config import RunConfig
from fedbnn_core.fleet import Fleet
from tests.apps.hostile_trees import CASES, SILENT
from tests.deploy.raw_device import RawDevice, RawDevices
from tests.deploy.site import QUICK

pytestmark = pytest.mark.deploy

HONEST = ["a", "b"]
HOSTILE = 4
ROUNDS = -(-len(CASES) // HOSTILE)
TIMEOUT = 180
LARGEST_MB = 1500
"""A server app with torch and this model has 600 MB; one bomb would have 400 GB."""


def config_of(total, **overrides):
    return {
        "num_server_rounds": ROUNDS,
        "clients_per_round": total,
        "quorum": len(HONEST) / total,
        "num_partitions": total,
        "min_partition_size": 1,
        # So that every case is tried.
        "quarantine_after": 0,
        "round_timeout_s": TIMEOUT,
        **overrides,
    }


class Memory(threading.Thread):
    """The largest resident set of the server apps of a site."""

    def __init__(self):
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.largest_mb = 0.0

    def run(self):
        while not self.ended.wait(0.2):
            for entry in Path("/proc").glob("[0-9]*"):
                try:
                    if b"flwr-serverapp" in (entry / "cmdline").read_bytes():
                        status = (entry / "status").read_text()
                        kb = int(re.search(r"VmHWM:\s+(\d+)", status)[1])
                        self.largest_mb = max(self.largest_mb, kb / 1024)
                except (OSError, TypeError):
                    continue


def populate(site, names):
    """Make a fleet of the honest devices and many others."""
    site.init(*HONEST)
    for name in names:
        Fleet(site.fleet).add(name)


def train(site, total):
    started = [site.device(name) for name in HONEST]
    for device in started:
        device.wait_for("Connected")
    command = site.run_arguments(**config_of(total))
    done = site.fedbnn(*command, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, site.run_directory()


def hashes(directory):
    summary = directory.read_json("summary.json")
    return summary["best_sha256"], summary["final_sha256"]


def test_hostile_devices_change_nothing(tmp_path_factory, site):
    from tests.deploy.site import Site

    # The silent ones make a round wait: all of them in the same one.
    cases = sorted(CASES, key=lambda case: (case in SILENT, case))
    total = len(HONEST) + HOSTILE
    names = [f"raw{number}" for number in range(HOSTILE)]
    assert len(cases) >= 25
    populate(site, names)
    site.serve().wait_for(f"{names[-1]} may join")
    raw = [
        RawDevice(site.bundle(name), cases[start::HOSTILE])
        for start, name in enumerate(names)
    ]
    settings = QUICK | {
        key.replace("_", "-"): value for key, value in config_of(total).items()
    }
    config = RunConfig.from_mapping(settings, complete=False).to_mapping()
    for device in raw:
        device.run_config = config
    devices, memory = RawDevices(raw), Memory()
    devices.start()
    memory.start()
    began = time.monotonic()
    _, directory = train(site, total)
    seconds = time.monotonic() - began
    devices.close()
    memory.ended.set()
    assert devices.problem is None, devices.problem
    lines = directory.read_metrics()
    assert [line.clients for line in lines] == [[0, 1]] * ROUNDS
    tried = [(device, *entry) for device in raw for entry in device.tried.items()]
    rejected = 0
    for device, number, case in tried:
        line = lines[number]
        attempts = (line, *line.failed_attempts)
        reasons = [
            entry.reason
            for attempt in attempts
            for entry in attempt.rejected
            if entry.client == device.number
        ]
        rejected += bool(reasons)
        assert reasons or case in SILENT, case
    assert len({case for _, _, case in tried} - SILENT) >= 25
    assert memory.largest_mb < LARGEST_MB
    assert seconds < ROUNDS * TIMEOUT
    print(f"{rejected} rejected, {memory.largest_mb:.0f} MB, {seconds:.0f} s")
    calm = Site(tmp_path_factory.mktemp("calm"))
    try:
        populate(calm, names)
        calm.serve()
        _, quiet = train(calm, total)
        assert [line.clients for line in quiet.read_metrics()] == [[0, 1]] * ROUNDS
        assert hashes(quiet) == hashes(directory)
    finally:
        calm.close()


def test_a_number_belongs_to_its_key(site):
    site.init("owner", "liar")
    server = site.serve()
    server.wait_for("liar may join")
    liar = RawDevice(site.bundle("liar"), ["empty-body"], number=0)
    devices = RawDevices([liar])
    devices.start()
    # The liar answers at once, the owner after Flower's seconds.
    site.device("owner").wait_for("Connected")
    done = site.run(num_server_rounds=1, quorum=0.5)
    devices.close()
    assert devices.problem is None, devices.problem
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert liar.sent, liar.refused
    assert "Device liar is excluded: it says that it has number 0" in output
    (line,) = site.run_directory().read_metrics()
    assert line.clients == [0]
    assert set(liar.sent) <= {"query"}

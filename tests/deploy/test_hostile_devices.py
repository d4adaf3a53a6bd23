"""Registered devices that are not Flower's client, against a real server with TLS."""

import re
import threading
import time
from pathlib import Path

import pytest

from fedbnn_core.config import RunConfig
from fedbnn_core.fleet import Fleet
from tests.apps.hostile_trees import CASES, SILENT
from tests.deploy.raw_device import Flood, RawDevice, RawDevices
from tests.deploy.site import QUICK

pytestmark = pytest.mark.deploy

HONEST = ["a", "b"]
DEVICES = 16
ROUNDS = -(-len(CASES) // DEVICES)
TIMEOUT = 180
LARGEST_MB = 1500
"""A server app with torch and this model has 600 MB; one bomb would have 400 GB."""
PROGRAMS = (b"flwr-serverapp", b"guarded_superlink")
START_SECONDS = 120
SLOW = SILENT | {"child-of-nobody", "huge-chunk"}
"""What the server waits for until the round ends, since it is never sent whole."""


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
    """The largest resident set of the server apps and SuperLinks."""

    def __init__(self):
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.largest_mb = 0.0

    def run(self):
        while not self.ended.wait(0.2):
            for entry in Path("/proc").glob("[0-9]*"):
                try:
                    command = (entry / "cmdline").read_bytes()
                    if any(program in command for program in PROGRAMS):
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


def train(site, total, **overrides):
    started = [site.device(name) for name in HONEST]
    for device in started:
        device.wait_for("Connected")
    command = site.run_arguments(**config_of(total, **overrides))
    done = site.fedbnn(*command, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, site.run_directory()


def hashes(directory):
    summary = directory.read_json("summary.json")
    return summary["best_sha256"], summary["final_sha256"]


def test_hostile_devices_change_nothing(tmp_path_factory, site):
    from tests.deploy.site import Site

    # Those that make a round wait come last, in the same round.
    cases = sorted(CASES, key=lambda case: (case in SLOW, case))
    total = len(HONEST) + DEVICES
    names = [f"raw{number}" for number in range(DEVICES)]
    populate(site, names)
    site.serve().wait_for(f"{names[-1]} may join")
    raw = [
        RawDevice(site.bundle(name), cases[start::DEVICES])
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
    outcomes = {
        case: outcome(device, number, lines[number])
        for device in raw
        for number, case in enumerate(device.cases)
        if number in device.tried or number in device.turned_away
    }
    for case, how in sorted(outcomes.items()):
        print(f"{case}: {how}")
    assert len(outcomes) >= 25
    silent = {case for case, how in outcomes.items() if not how}
    assert silent <= SLOW
    assert memory.largest_mb < LARGEST_MB
    assert seconds < ROUNDS * TIMEOUT + START_SECONDS
    print(f"{len(outcomes)} tried, {memory.largest_mb:.0f} MB, {seconds:.0f} s")
    calm = Site(tmp_path_factory.mktemp("calm"))
    try:
        populate(calm, names)
        calm.serve()
        _, quiet = train(calm, total)
        assert [line.clients for line in quiet.read_metrics()] == [[0, 1]] * ROUNDS
        assert hashes(quiet) == hashes(directory)
    finally:
        calm.close()


def outcome(device, number, line):
    """Return why a device's reply was not taken in a round, and by whom."""
    if number in device.turned_away:
        return f"SuperLink: {device.turned_away[number]:.200}"
    attempts = (line, *line.failed_attempts)
    return next(
        (
            f"server: {entry.reason}"
            for attempt in attempts
            for entry in attempt.rejected
            if entry.client == device.number
        ),
        "",
    )


def test_a_flood_of_calls_does_not_end_a_run(site):
    names = [f"raw{number}" for number in range(4)]
    total = len(HONEST) + len(names)
    populate(site, names)
    site.serve().wait_for(f"{names[-1]} may join")
    devices = [RawDevice(site.bundle(name)) for name in names]
    floods = [Flood(device, kind) for device in devices for kind in Flood.KINDS]
    memory = Memory()
    memory.start()
    for flood in floods:
        flood.start()
    try:
        _, directory = train(site, total, quorum=1.0, clients_per_round=len(HONEST))
    finally:
        for flood in floods:
            flood.ended.set()
        memory.ended.set()
    assert [line.clients for line in directory.read_metrics()] == [[0, 1]] * ROUNDS
    assert memory.largest_mb < LARGEST_MB
    for flood in floods:
        flood.join(60)
        assert flood.problem is None, flood.problem
        assert flood.calls > 10
        # Only questions whether there is work are answered.
        assert flood.taken == (flood.calls if flood.kind == "pull" else 0)
    print(
        {kind: sum(f.calls for f in floods if f.kind == kind) for kind in Flood.KINDS}
    )


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

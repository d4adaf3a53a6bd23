"""What the server tells its operator while it runs, without starting a SuperLink."""

import datetime
from contextlib import contextmanager

import pytest

from fedbnn_core.errors import FleetError
from fedbnn_core.fleet import Fleet
from fedbnn_core.flower import superlink
from fedbnn_core.flower.superlink import ServerSettings


class Process:
    """A SuperLink that ends after some looks at it."""

    def __init__(self, looks):
        self.looks = looks

    def poll(self):
        self.looks -= 1
        return None if self.looks >= 0 else 0


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """Return a function that watches for some turns and returns what was said.

    Each turn a device is added, and the control port answers or not.
    """
    fleet = Fleet.create(tmp_path / "fleet", ["a.example"])
    monkeypatch.setattr(superlink, "_SYNC_SECONDS", 0.0)

    def run(answers, days=100):
        left = list(answers)

        class Connection:
            def reconcile(self, devices):
                return [devices[-1].name], []

        @contextmanager
        def connected(endpoint):
            if not left.pop(0):
                raise FleetError("nobody answers")
            yield Connection()
            fleet.add(f"d{len(left)}")

        monkeypatch.setattr(superlink, "connected", connected)
        fleet.add("first")
        now = datetime.datetime.now(datetime.UTC)
        end = {"server certificate": now + datetime.timedelta(days=days)}
        said = []
        superlink._keep_registered(
            Process(len(left)), fleet, None, end, lambda text: said.append(text)
        )
        return said

    return run


def test_failures_while_the_control_port_opens_are_not_mentioned(watch):
    assert watch([False] * 40) == []


def test_the_first_failure_after_that_is_mentioned_and_not_each_one(watch, monkeypatch):
    monkeypatch.setattr(superlink, "_OPENING_SECONDS", 0.0)
    assert watch([False] * 40) == ["cannot update the devices: nobody answers"]


def test_the_first_failure_after_a_success_is_mentioned(watch):
    assert watch([False, True, False, False]) == [
        "first may join",
        "cannot update the devices: nobody answers",
    ]


def test_the_certificate_is_not_looked_at_more_often_than_daily(watch):
    assert watch([False] * 9, days=-1) == []


@pytest.mark.parametrize(
    ("days", "words"),
    [(10.5, "expires in 10 days"), (-1, "devices refuse it"), (99, "")],
)
def test_the_daily_look_says_what_to_do(watch, monkeypatch, days, words):
    monkeypatch.setattr(superlink, "_DAY_SECONDS", 0.0)
    said = " ".join(watch([False], days))
    assert words in said
    assert ("'fedbnn fleet renew' and restart" in said) == bool(words)


def test_an_ipv6_control_address_has_brackets():
    assert ServerSettings("[::]:1", "::1", 8000).control_address == "[::1]:8000"

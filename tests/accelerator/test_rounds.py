"""Every method and network on an accelerator, as far as that shows without one.

`pretended` is the accelerator. It refuses operands on two devices and float64 by
itself; here its counts and results are looked at.
"""

import json
import subprocess
import sys
from functools import cache

import pytest

from fedbnn_core.choices import MODELS, method_names

MOST_LAUNCHES = {"fedbnn": 4.5, "fedbat": 4.5, "fedmud": 3.0}
"""Launches of an eager training step, in those of the float twin's."""


@cache
def rounds(network: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "tests.accelerator.rounds", network],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


# The deep networks take minutes: make test-deploy.
QUICK = ("cnn4", "resnet10")

pytestmark = [
    pytest.mark.parametrize(
        "network",
        [
            pytest.param(name, marks=() if name in QUICK else pytest.mark.deploy)
            for name in MODELS
        ],
    ),
]
of_methods = pytest.mark.parametrize("method", method_names())


@of_methods
def test_client_and_server_compute_what_they_compute_on_the_host(method, network):
    found = rounds(network)[method]
    assert found["same_names"]
    # The same kernels did the work, so the bits are the same.
    assert found["difference"] == 0.0
    assert found["losses"][0] == found["losses"][1]
    on_host, there = found["scores"]
    assert there == pytest.approx(on_host, rel=1e-5)


@of_methods
def test_no_step_waits_for_the_device(method, network):
    few_batches, many_batches = rounds(network)[method]["waits"]
    assert few_batches == many_batches
    assert sum(few_batches.values()) > 0, "a round reads its result, at least"


@of_methods
def test_launches_stay_within_the_budget(method, network):
    found = rounds(network)
    ratio = found[method]["launches_per_step"] / found["fedavg"]["launches_per_step"]
    assert ratio <= MOST_LAUNCHES.get(method, 1.0)


def test_integer_steps_need_no_float64_and_no_waiting(network):
    found = rounds(network)["fedbnn-8"]
    few_batches, many_batches = found["waits"]
    assert few_batches == many_batches
    assert found["same_names"]
    # The host sums in float64, the device in float32: gradients may round otherwise,
    # and the signs of a deep network follow.
    there, on_host = found["losses"]
    assert there == pytest.approx(on_host, rel=0.1)

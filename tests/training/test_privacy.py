"""Local differential privacy: what leaves a device."""

import math

import numpy as np
import pytest

from fedbnn_core.config import RunConfig
from fedbnn_core.training.privacy import mechanism_epsilon, publishable


def test_mechanism_gets_the_configured_noise():
    config = RunConfig.from_mapping(
        {"privacy-noise-multiplier": 3.0, "privacy-clip-norm": 0.5}, complete=False
    )
    epsilon = mechanism_epsilon(config)
    deviation = 0.5 * math.sqrt(2 * math.log(1.25 / config.privacy_delta)) / epsilon
    assert deviation == pytest.approx(3.0 * 0.5)


def test_publishable_arrays_hold_no_integers_of_the_client():
    broadcast = {
        "w": np.zeros(2, np.float32),
        "bn.running_var": np.ones(2, np.float32),
        "bn.num_batches_tracked": np.array(5),
    }
    noisy = {
        "bn.running_var": np.array([-0.3, 2.0], np.float32),
        "w": np.ones(2, np.float32),
    }
    got = publishable(noisy, broadcast)
    assert list(got) == list(broadcast)
    assert int(got["bn.num_batches_tracked"]) == 5
    assert got["bn.running_var"].min() > 0
    assert got["bn.running_var"][1] == 2.0

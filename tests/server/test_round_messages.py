"""Few bits on the wire in whole runs: what they exclude, resume, robust rules."""

import math

import numpy as np
import pytest

from fedbnn_core.arrays import npy_bytes
from fedbnn_core.errors import ConfigError
from fedbnn_core.server.opening import open_run
from fedbnn_core.wire.container import pack
from tests.tiny_run import CLIENTS, TinyFederation, tiny_config, write_data

ONE_BIT = {"uplink_bits": 1, "downlink_bits": 8}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data") / "d.npz", train=64, test=40)


def config(data, tmp_path, **settings):
    return tiny_config(data, tmp_path, num_server_rounds=3, **settings)


@pytest.mark.parametrize("bits", [{"uplink_bits": 8}, {"downlink_bits": 4}])
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method": "fedbat"}, "'fedbat' has its own coding.*one of fedavg, fedbnn"),
        ({"method": "fedmud"}, "'fedmud' has its own coding"),
        ({"privacy": "local"}, "privacy = 'local' needs uplink-bits.*is noise"),
    ],
)
def test_what_few_bits_exclude_is_an_error_at_the_start(
    data, tmp_path, settings, bits, reason
):
    with pytest.raises(ConfigError, match=reason):
        open_run(config(data, tmp_path, **settings, **bits), CLIENTS)
    assert not list(tmp_path.iterdir())


def test_the_message_is_coded_once_a_round_and_read_as_clients_do(data, tmp_path):
    federation = TinyFederation(config(data, tmp_path, **ONE_BIT))
    run = federation.run
    wire = run.context.method.wire
    for index in range(2):
        order = run.messages.order()
        assert run.messages.order() is order
        read = wire.read_order(order, index)
        for name, array in run.messages.received().items():
            np.testing.assert_array_equal(read[name], array)
        federation.round()


@pytest.mark.parametrize(
    "settings",
    [
        {"robust": "median"},
        {"robust": "trimmed-mean"},
        {"robust": "clip"},
        {"over_selection": 2},
        {"aggregation": "client"},
        {"method": "fedavg", "robust": "clip"},
    ],
)
def test_few_bits_go_with_robust_rules_and_over_selection(data, tmp_path, settings):
    federation = TinyFederation(config(data, tmp_path, **ONE_BIT, **settings))
    summary = federation.to_end()
    lines = federation.run.directory.read_metrics()
    assert not summary.stopped
    for line in lines:
        assert line.rejected == []
        assert len(line.clients) == 3
        assert line.update_norm > 0
        assert math.isfinite(line.update_norm)


@pytest.mark.parametrize("bits", [ONE_BIT, {"uplink_bits": 8, "downlink_bits": 4}])
def test_a_resumed_run_ends_with_the_same_bits(data, tmp_path, bits):
    whole = TinyFederation(config(data, tmp_path, **bits)).to_end()
    stopped = TinyFederation(config(data, tmp_path, **bits))
    stopped.round()
    stopped.run.directory.release()
    path = stopped.run.directory.path
    resumed = TinyFederation(tiny_config(data, tmp_path, resume=str(path))).to_end()
    assert resumed.final_sha256 == whole.final_sha256
    assert resumed.best_sha256 == whole.best_sha256
    float_run = TinyFederation(config(data, tmp_path)).to_end()
    assert float_run.final_sha256 != whole.final_sha256


def test_metrics_tell_the_bits_per_weight(data, tmp_path):
    federation = TinyFederation(config(data, tmp_path, **ONE_BIT))
    run = federation.run
    metrics = federation.round()
    weights = sum(
        array.size
        for name, array in run.broadcast.items()
        if "running" not in name and "tracked" not in name
    )
    # The one array of a message is an npy file, too.
    size = npy_bytes(pack(run.messages.order()))
    assert metrics.bits_down == pytest.approx(8 * size / weights, abs=1e-4)
    assert metrics.bytes_down == 3 * size
    assert metrics.bits_up < metrics.bits_down
    assert metrics.bytes_up == pytest.approx(
        metrics.bits_up * weights * 3 / 8, rel=1e-3
    )


def test_a_diverged_client_is_rejected_with_the_reason(data, tmp_path):
    federation = TinyFederation(config(data, tmp_path, **ONE_BIT))
    spoiled = []

    def one_is_nan(reply):
        if spoiled:
            return reply
        spoiled.append(reply.partition_id)
        name = next(n for n, a in reply.arrays.items() if a.ndim == 4)
        reply.arrays[name] = np.full_like(reply.arrays[name], np.nan)
        return reply

    metrics = federation.round(one_is_nan)
    (rejection,) = metrics.rejected
    assert rejection.client == spoiled[0]
    assert "scales that are none, such as nan" in rejection.reason

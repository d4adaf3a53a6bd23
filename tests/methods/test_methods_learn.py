"""All methods through the real server and clients on a task made for the test."""

import json

import pytest

from tests.tiny_run import TinyFederation, tiny_config, write_data

USUAL = {"lr": 0.1, "local_epochs": 3, "batch_size": 16}
# FedBAT's signs need more steps to say as much as floats. FedMUD's frozen factors are
# large, so its steps must be small, too; see experiments/.
MORE_STEPS = {"lr": 0.1, "local_epochs": 5, "batch_size": 8}
SMALL_STEPS = MORE_STEPS | {"lr": 0.01}
STEPS = {"fedavg": USUAL, "fedbat": MORE_STEPS, "fedbnn": USUAL, "fedmud": SMALL_STEPS}


@pytest.mark.cpu_settings
@pytest.mark.parametrize("method", list(STEPS))
def test_learns_and_accounts_for_its_traffic(method, tmp_path, training_seed, margin):
    """Three classes in 240 images of 16x16; chance is a third."""
    data = write_data(tmp_path / "data.npz", size=16, seed=training_seed)
    config = tiny_config(
        data,
        tmp_path,
        method=method,
        model="cnn4",
        clients_per_round=4,
        num_server_rounds=3,
        seed=training_seed,
        **STEPS[method],
    )
    federation = TinyFederation(config, clients=4)
    summary = federation.to_end()
    margin(summary.test_accuracy - 0.6)
    binarized = set(summary.variants)
    if method == "fedbnn":
        assert binarized == set()
    else:
        assert binarized == {"ptb", "ptb_l1"}
        assert 0 <= summary.variants["ptb"] <= 1
    metrics = (federation.run.directory.path / "metrics.jsonl").read_text()
    nominal = federation.run.context.method.template.nominal_bytes
    for line in map(json.loads, metrics.splitlines()):
        assert line["bytes_up_nominal"] == 4 * nominal.up
        assert line["bytes_down_nominal"] == 4 * nominal.down


@pytest.mark.parametrize("method", ["fedbat", "fedmud"])
def test_a_resumed_run_ends_in_the_same_bits(method, tmp_path):
    """FedMUD's seed and clock travel in the broadcast, FedBAT's draws have seeds."""
    data = write_data(tmp_path / "data.npz")
    settings = {"method": method, "lr": 0.01, "num_server_rounds": 4}
    whole = TinyFederation(tiny_config(data, tmp_path, **settings)).to_end()
    stopped = TinyFederation(tiny_config(data, tmp_path, **settings))
    stopped.round()
    stopped.round()
    stopped.run.directory.release()
    path = str(stopped.run.directory.path)
    resumed = TinyFederation(tiny_config(data, tmp_path, **settings, resume=path))
    assert resumed.run.rounds_done == 2
    assert resumed.to_end().final_sha256 == whole.final_sha256

"""The server's half of a run: retries, stopping, resuming, notes."""

import shutil
from dataclasses import replace

import pytest

from fedbnn_core.errors import ConfigError, RunError
from fedbnn_core.privacy import ClientAccountant
from fedbnn_core.run_data import load_run_dataset
from fedbnn_core.server_run import ServerRun, stored_config
from fedbnn_core.traffic import RoundTraffic
from tests.tiny_run import CLIENTS, TinyFederation, tiny_config, write_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data") / "d.npz", train=64, test=40)


@pytest.fixture(scope="module")
def interrupted(data, tmp_path_factory):
    """Return the folder of a run that ended after three of five rounds, and a whole."""
    runs = tmp_path_factory.mktemp("runs")
    federation = TinyFederation(tiny_config(data, runs, num_server_rounds=5))
    for _ in range(3):
        federation.round()
    federation.run.directory.release()
    whole = TinyFederation(tiny_config(data, runs, num_server_rounds=5)).to_end()
    return federation.run.directory.path, whole


@pytest.fixture
def stopped(interrupted, tmp_path):
    return shutil.copytree(interrupted[0], tmp_path / "run")


def resume(data, path):
    return TinyFederation(tiny_config(data, path.parent, resume=str(path)))


def test_resumed_run_ends_like_the_whole_one(data, interrupted, stopped):
    federation = resume(data, stopped)
    assert federation.run.notes == ["Resuming after round 3"]
    summary = federation.to_end()
    for key in ("best_sha256", "final_sha256", "test_accuracy", "best_round"):
        assert summary[key] == interrupted[1][key]
    rounds = [line["round"] for line in federation.run.directory.read_metrics()]
    assert rounds == [1, 2, 3, 4, 5]


def test_damaged_checkpoint_is_noted_and_the_one_before_used(
    data, interrupted, stopped
):
    path = stopped / "checkpoints" / "weights-000003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    federation = resume(data, stopped)
    assert "Damaged checkpoint: weights-000003" in federation.run.notes[0]
    assert federation.run.notes[1] == "Resuming after round 2"
    assert federation.to_end()["final_sha256"] == interrupted[1]["final_sha256"]


def test_run_without_checkpoint_starts_again(data, interrupted, stopped):
    shutil.rmtree(stopped / "checkpoints")
    federation = resume(data, stopped)
    assert "starting from round 1" in federation.run.notes[0]
    assert federation.to_end()["final_sha256"] == interrupted[1]["final_sha256"]


def test_elapsed_time_goes_on(data, stopped):
    run = resume(data, stopped).run
    before = run.directory.read_metrics()[-1]["elapsed_seconds"]
    assert run.elapsed_seconds() >= before


def test_running_run_cannot_be_resumed(data, stopped):
    first = resume(data, stopped)
    with pytest.raises(RunError, match="is still writing to"):
        resume(data, stopped)
    first.run.directory.release()


def test_stored_config_wins(data, stopped):
    given = tiny_config(data, stopped, lr=0.9, resume=str(stopped))
    assert stored_config(given).lr == 0.1
    assert stored_config(given).num_server_rounds == 5
    with pytest.raises(RunError, match="is no run directory"):
        stored_config(tiny_config(data, stopped, resume=str(stopped / "absent")))


@pytest.mark.parametrize(
    ("quorum", "asked", "wanted"),
    [(0.5, 3, (2, 3)), (1.0, 3, (3, 3)), (0.01, 3, (1, 3)), (0.5, 13, (5, 10))],
)
def test_quorum_counts_the_wanted_replies(data, tmp_path, quorum, asked, wanted):
    config = tiny_config(data, tmp_path, quorum=quorum, clients_per_round=10)
    assert ServerRun(config, CLIENTS).needed_replies(asked) == wanted


def test_failed_attempts_change_the_draw_and_end_the_run(data, tmp_path):
    run = ServerRun(tiny_config(data, tmp_path, max_round_retries=1), CLIENTS)
    first = run.sample(range(CLIENTS))
    run.fail_attempt(RoundTraffic(asked=first))
    second = run.sample(range(CLIENTS), tried=first)
    assert not set(first) & set(second)
    with pytest.raises(RunError, match="round 1 had too few usable replies in 2"):
        run.fail_attempt(RoundTraffic(asked=second))
    summary = run.finish(stopped="no quorum")
    assert summary["status"] == "stopped"
    assert [attempt["asked"] for attempt in summary["failed_attempts"]] == [
        first,
        second,
    ]


def test_resumed_private_run_counts_what_clients_sent_to_lost_rounds(data, tmp_path):
    pytest.importorskip("dp_accounting")
    settings = {
        "clients_per_round": CLIENTS,
        "privacy": "local",
        "privacy_noise_multiplier": 20.0,
        "num_server_rounds": 4,
        "checkpoint_every": 2,
    }
    whole = TinyFederation(tiny_config(data, tmp_path, **settings))
    clean = [whole.round()["epsilon"] for _ in range(4)]
    stopped = TinyFederation(tiny_config(data, tmp_path, **settings))
    path = stopped.run.directory.path
    for _ in range(3):
        stopped.round()
    stopped.run.sample(range(CLIENTS))  # asked, and then the server dies
    stopped.run.directory.release()
    resumed = resume(data, path)
    # Rounds 1 to 4 were asked for once and 3, 4 once more: six releases, not four.
    epsilons = [resumed.round()["epsilon"] for _ in range(2)]
    assert epsilons[0] > clean[3] > clean[2]
    summary = resumed.run.finish()
    assert summary["epsilon"] == epsilons[1]
    six = ClientAccountant(noise_multiplier=20.0, delta=1e-5)
    for _ in range(6):
        six.record([0])
    assert epsilons[1] == six.epsilon()

    (path / "privacy.jsonl").write_text("")
    with pytest.raises(RunError, match=r"privacy\.jsonl was cut"):
        resume(data, path)


def test_methods_without_private_mode_are_refused(data, tmp_path):
    pytest.importorskip("dp_accounting")
    with pytest.raises(ConfigError, match="has no private mode"):
        ServerRun(tiny_config(data, tmp_path, method="fedbat", privacy="local"), 8)


def test_statistics_of_the_evaluation_are_noted(data, tmp_path, monkeypatch):
    def load(config):
        return replace(load_run_dataset(config), test_mean=(0.1,), test_std=(0.2,))

    monkeypatch.setattr("fedbnn_core.server_run.load_run_dataset", load)
    run = ServerRun(tiny_config(data, tmp_path), CLIENTS)
    about = run.directory.read_json("config.json")
    assert (about["test_mean"], about["test_std"]) == ([0.1], [0.2])
    assert about["mean"] != [0.1]
    run.directory.release()

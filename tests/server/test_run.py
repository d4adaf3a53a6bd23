"""The server's half of a run: retries, stopping, resuming, notes."""

import json
import os
import shutil
from dataclasses import replace

import pytest

from fedbnn_core.binary import native_steps
from fedbnn_core.errors import ConfigError, ReplyError, RunError
from fedbnn_core.runs.dataset import load_run_dataset
from fedbnn_core.server import opening
from fedbnn_core.server.evaluation import BestModel
from fedbnn_core.server.opening import open_run, stored_config
from fedbnn_core.server.privacy import ClientAccountant
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
        assert getattr(summary, key) == getattr(interrupted[1], key)
    rounds = [line.round for line in federation.run.directory.read_metrics()]
    assert rounds == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("bits", [8, 4])
def test_rounded_gradients_resume_to_the_same_bits_on_any_kernel(data, tmp_path, bits):
    config = tiny_config(data, tmp_path, num_server_rounds=3, gradient_bits=bits)
    whole = TinyFederation(config).to_end()
    stopped = TinyFederation(config)
    stopped.round()
    stopped.run.directory.release()
    kernels = native_steps.kernels()
    native_steps.use_kernel(kernels[-1] if kernels else "auto")
    try:
        summary = resume(data, stopped.run.directory.path).to_end()
    finally:
        native_steps.use_kernel("auto")
    assert summary.final_sha256 == whole.final_sha256
    assert summary.best_sha256 == whole.best_sha256
    exact = tiny_config(data, tmp_path, num_server_rounds=3, gradient_bits=32)
    assert TinyFederation(exact).to_end().final_sha256 != whole.final_sha256


def test_damaged_checkpoint_is_noted_and_the_one_before_used(
    data, interrupted, stopped
):
    path = stopped / "checkpoints" / "weights-000003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    federation = resume(data, stopped)
    assert "Damaged checkpoint: weights-000003" in federation.run.notes[0]
    assert federation.run.notes[1] == "Resuming after round 2"
    assert federation.to_end().final_sha256 == interrupted[1].final_sha256


@pytest.mark.parametrize("part", ["previous", "best"])
def test_damage_that_does_not_matter_is_noted(data, interrupted, stopped, part):
    manifest = json.loads((stopped / "checkpoints" / "round-000003.json").read_text())
    path = stopped / "checkpoints" / manifest["files"][part]["name"]
    path.write_bytes(path.read_bytes()[:-1])
    federation = resume(data, stopped)
    assert path.name in federation.run.notes[0]
    assert federation.run.notes[1] == "Resuming after round 3"
    summary = federation.to_end()
    for key in ("best_sha256", "final_sha256", "best_round"):
        assert getattr(summary, key) == getattr(interrupted[1], key)


def test_run_that_had_no_round_yet_starts_again(data, interrupted, stopped):
    shutil.rmtree(stopped / "checkpoints")
    (stopped / "metrics.jsonl").unlink()
    federation = resume(data, stopped)
    assert "starting from round 1" in federation.run.notes[0]
    assert federation.to_end().final_sha256 == interrupted[1].final_sha256


def test_lost_checkpoints_are_told_and_the_metrics_kept(data, stopped):
    (stopped / "checkpoints").rename(stopped.parent / "away")
    before = (stopped / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError, match=r"has 3 rounds in metrics\.jsonl but no check"):
        resume(data, stopped)
    assert (stopped / "metrics.jsonl").read_bytes() == before


def test_changed_metrics_do_not_get_a_round_twice(data, stopped):
    path = stopped / "checkpoints" / "weights-000003.safetensors"
    path.write_bytes(b"")
    metrics = stopped / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("{", "{ ", 1))
    federation = resume(data, stopped)
    assert "metrics.jsonl was changed since the checkpoint" in federation.run.notes
    federation.to_end()
    rounds = [line.round for line in federation.run.directory.read_metrics()]
    assert rounds == [1, 2, 3, 4, 5]


def test_another_number_of_clients_is_refused(data, stopped):
    config = tiny_config(data, stopped.parent, resume=str(stopped))
    with pytest.raises(RunError, match=r"with 8 clients.* are 2; .*num-supernodes=8"):
        TinyFederation(config, clients=2)


def test_other_versions_are_noted(data, stopped):
    path = stopped / "config.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"torch_version": "1.0"}))
    notes = resume(data, stopped).run.notes
    assert "started with torch_version 1.0 and goes on with" in notes[0]
    assert len(notes) == 2


def test_elapsed_time_goes_on(data, stopped):
    run = resume(data, stopped).run
    before = run.directory.read_metrics()[-1].elapsed_seconds
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
    assert open_run(config, CLIENTS).needed_replies(asked) == wanted


def test_failed_attempts_change_the_draw_and_end_the_run(data, tmp_path):
    run = open_run(tiny_config(data, tmp_path, max_round_retries=1), CLIENTS)
    first = run.begin_attempt(range(CLIENTS))
    assert run.end_attempt(first) is None
    second = run.begin_attempt(range(CLIENTS))
    assert not set(first.asked) & set(second.asked)
    with pytest.raises(RunError, match="round 1 had too few usable replies in 2"):
        run.end_attempt(second)
    summary = run.finish(stopped="no quorum")
    assert summary.stopped
    assert [attempt.asked for attempt in summary.failed_attempts] == [
        first.asked,
        second.asked,
    ]
    stored = run.directory.read_json("summary.json")
    assert (stored["status"], stored["reason"]) == ("stopped", "no quorum")
    assert stored["failed_attempts"][0]["missing"] == first.asked
    assert "best_round" not in stored


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
    clean = [whole.round().epsilon for _ in range(4)]
    stopped = TinyFederation(tiny_config(data, tmp_path, **settings))
    path = stopped.run.directory.path
    for _ in range(3):
        stopped.round()
    stopped.run.begin_attempt(range(CLIENTS))  # asked, and then the server dies
    stopped.run.directory.release()
    resumed = resume(data, path)
    # Rounds 1 to 4 were asked for once and 3, 4 once more: six releases, not four.
    epsilons = [resumed.round().epsilon for _ in range(2)]
    assert epsilons[0] > clean[3] > clean[2]
    summary = resumed.run.finish()
    assert summary.epsilon == epsilons[1]
    six = ClientAccountant(noise_multiplier=20.0, delta=1e-5)
    for _ in range(6):
        six.record([0])
    assert epsilons[1] == six.epsilon()

    (path / "privacy.jsonl").write_text("")
    with pytest.raises(RunError, match=r"privacy\.jsonl was cut"):
        resume(data, path)


@pytest.mark.parametrize("method", ["fedbat", "fedmud"])
def test_clipping_what_is_no_weight_is_refused(data, tmp_path, method):
    config = tiny_config(data, tmp_path, method=method, robust="clip")
    with pytest.raises(ConfigError, match=r"robust = 'clip'.*fedavg, fedbnn"):
        open_run(config, CLIENTS)
    open_run(tiny_config(data, tmp_path, method=method, robust="median"), CLIENTS)


def test_run_stores_how_many_images_and_what_method_it_had(data, tmp_path):
    run = open_run(tiny_config(data, tmp_path, method="fedbat"), CLIENTS)
    stored = run.directory.read_json("config.json")
    assert (stored["train_images"], stored["test_images"]) == (64, 40)
    assert (stored["method_title"], stored["binary"]) == ("FedBAT", False)


def test_methods_without_private_mode_are_refused(data, tmp_path):
    pytest.importorskip("dp_accounting")
    with pytest.raises(ConfigError, match="has no private mode"):
        open_run(tiny_config(data, tmp_path, method="fedbat", privacy="local"), 8)


def test_no_client_claims_more_images_than_it_holds(data, tmp_path):
    uneven = {"partition": "dirichlet", "min_partition_size": 1}
    federation = TinyFederation(tiny_config(data, tmp_path, **uneven))
    run, sizes = federation.run, list(federation.run.context.examples.values())
    assert len(set(sizes)) > 1
    # Client 2's device has images of its own, and so has one added to the fleet.
    run.admit_examples({1: 0, 2: 1_000_000, 11: 40})
    bounds = [run.rules_for(client).max_examples for client in range(CLIENTS)]
    assert bounds == [*sizes[:2], 1_000_000, *sizes[3:]]
    assert run.rules_for(11).max_examples == 40
    assert run.rules_for(12).max_examples == 0


def test_all_clients_of_a_private_run_weigh_the_same(data, tmp_path):
    pytest.importorskip("dp_accounting")
    run = open_run(tiny_config(data, tmp_path, privacy="local"), CLIENTS)
    run.admit_examples({3: 1_000_000})
    assert {run.rules_for(client).max_examples for client in range(CLIENTS)} == {1}


def used_bytes(path):
    files = [*path.rglob("*.safetensors"), *path.rglob("*.tmp")]
    return sum(file.stat().st_size for file in files)


@pytest.mark.parametrize("keep", [1, 3])
def test_space_is_enough_when_every_round_is_the_best(
    data, tmp_path, monkeypatch, keep
):
    asked, used = [], []
    monkeypatch.setattr(opening, "require_space", lambda path, size: asked.append(size))
    federation = TinyFederation(
        tiny_config(data, tmp_path, keep_checkpoints=keep, num_server_rounds=6)
    )
    run = federation.run
    score = run._evaluation.score_candidates

    def always_better(candidates, round_number, best):
        return score(candidates, round_number, BestModel())

    monkeypatch.setattr(run._evaluation, "score_candidates", always_better)
    sync = os.fsync

    def watched(handle):
        sync(handle)
        used.append(used_bytes(run.directory.path))

    monkeypatch.setattr(os, "fsync", watched)
    federation.to_end()
    (space,) = asked
    # Headers of files are not in the estimate to the byte.
    assert 0.6 * space < max(used) <= space


def test_replies_that_wait_on_disk_need_room_too(data, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(opening, "require_space", lambda path, size: asked.append(size))
    run = open_run(tiny_config(data, tmp_path), CLIENTS)
    template = run.context.method.template
    expected = (*template.reply.values(), *template.rotations.values())
    reply = sum(array.nbytes for array in expected)
    # Three clients per round: two replies in memory, one on disk.
    monkeypatch.setattr(opening, "DEFAULT_BUDGET_BYTES", 2 * reply)
    open_run(tiny_config(data, tmp_path), CLIENTS)
    assert asked[1] - asked[0] == reply


def test_full_disk_is_found_before_a_run_goes_on(data, stopped, monkeypatch):
    usage = shutil.disk_usage(stopped)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    with pytest.raises(RunError, match=r"only 0\.0 MB are free"):
        resume(data, stopped)


def test_clients_caught_in_a_failed_attempt_are_told(data, tmp_path):
    settings = {"quarantine_after": 1, "clients_per_round": CLIENTS}
    federation = TinyFederation(tiny_config(data, tmp_path, **settings))

    def broken():
        raise ReplyError("broken")

    with federation.run.begin_attempt(range(CLIENTS)) as attempt:
        for client in (6, 2):
            attempt.take(client, broken)
        assert federation.run.end_attempt(attempt) is None
    line = federation.round()
    assert line.quarantined == [2, 6]
    assert line.failed_attempts[0].quarantined == [6, 2]
    # In the repeated round all were let in; afterwards the two are excluded.
    assert line.asked == list(range(CLIENTS))


def test_quarantine_holds_where_all_clients_are_asked(data, tmp_path):
    settings = {"quarantine_after": 1, "clients_per_round": CLIENTS, "quorum": 0.5}
    run = open_run(tiny_config(data, tmp_path, **settings), CLIENTS)
    run._state.quarantine.record(0, good=[], bad=[3])
    assert run.begin_attempt(range(CLIENTS)).asked == [0, 1, 2, 4, 5, 6, 7]
    # Four are the quorum of eight: two of five come back.
    run._state.quarantine.record(0, good=[], bad=[0, 1, 2, 4, 5])
    assert run.begin_attempt(range(CLIENTS)).asked == [0, 1, 6, 7]


def test_statistics_of_the_evaluation_are_noted(data, tmp_path, monkeypatch):
    def load(config):
        return replace(load_run_dataset(config), test_mean=(0.1,), test_std=(0.2,))

    monkeypatch.setattr("fedbnn_core.server.opening.load_run_dataset", load)
    run = open_run(tiny_config(data, tmp_path), CLIENTS)
    about = run.directory.read_json("config.json")
    assert (about["test_mean"], about["test_std"]) == ([0.1], [0.2])
    assert about["mean"] != [0.1]
    run.directory.release()

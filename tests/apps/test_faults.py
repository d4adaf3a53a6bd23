"""Bad replies, stragglers, dropouts and lost quorums, with the real apps."""

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from fedbnn_core.errors import RunError
from fedbnn_core.runs.directory import RunDirectory
from fedbnn_core.runs.metrics import Rejection
from fedbnn_core.server.local import LocalFederation
from fedbnn_core.server.opening import open_run
from fedbnn_core.wire.container import CONTAINER, pack, unpack
from server_app.roster import Roster
from server_app.strategy import FedBNNStrategy, to_record
from tests.apps.local_grid import LocalGrid, error_reply, run_server
from tests.tiny_run import CLIENTS, tiny_config, write_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data") / "d.npz", train=64, test=40)


@pytest.fixture
def federate(data, tmp_path):
    """Return a function that runs a federation and returns its directory and grid."""

    def run(
        *,
        fault=None,
        order=None,
        models=None,
        stops=False,
        clients=CLIENTS,
        **overrides,
    ):
        settings = {"num_server_rounds": 3, "client_threads": 1} | overrides
        config = tiny_config(data, tmp_path, **settings).to_mapping()
        grid = LocalGrid(clients, config, fault=fault, order=order, models=models)
        before = set(tmp_path.glob("2*"))
        if stops:
            with pytest.raises(RunError):
                run_server(grid, config)
        else:
            run_server(grid, config)
        (path,) = set(tmp_path.glob("2*")) - before or {overrides.get("resume")}
        return RunDirectory(Path(path)), grid

    return run


def hashes(directory):
    summary = directory.read_json("summary.json")
    return summary["best_sha256"], summary["final_sha256"], summary["test_accuracy"]


@pytest.mark.parametrize(
    ("method", "bits"),
    [
        *((name, {}) for name in ("fedbnn", "fedavg", "fedbat", "fedmud")),
        ("fedbnn", {"uplink_bits": 1, "downlink_bits": 8}),
        ("fedbnn", {"uplink_bits": 8, "downlink_bits": 4}),
        ("fedbnn", {"downlink_bits": 16}),
        ("fedavg", {"uplink_bits": 1, "downlink_bits": 4}),
        ("fedavg", {"uplink_bits": 16}),
    ],
)
def test_the_apps_and_the_local_federation_give_the_same_bits(
    federate, data, tmp_path, method, bits
):
    directory, _ = federate(method=method, **bits)
    config = tiny_config(data, tmp_path, method=method, client_threads=1, **bits)
    settings = config.to_mapping() | {"num-server-rounds": 3}
    names = {key.replace("-", "_"): value for key, value in settings.items()}
    rounds = names.pop("num_server_rounds")
    local = LocalFederation(clients=CLIENTS, rounds=rounds, **names).run()
    assert hashes(directory) == (
        local.summary.best_sha256,
        local.summary.final_sha256,
        local.summary.test_accuracy,
    )
    for one, two in zip(directory.read_metrics(), local.history, strict=True):
        assert (one.bytes_up, one.bytes_down) == (two.bytes_up, two.bytes_down)
        assert (one.bits_up, one.bits_down) == (two.bits_up, two.bits_down)
    assert (directory.path / "model.fbnn").is_file() == (method == "fedbnn")
    if local.packed:
        assert (directory.path / "model.fbnn").read_bytes() == local.packed


def with_arrays(reply, change):
    record = reply.content.array_records["arrays"]
    arrays = {
        name: np.load(io.BytesIO(file))
        for name, file in unpack(record[CONTAINER].data).items()
    }
    name = next(iter(arrays))
    arrays[name] = change(arrays[name])
    record[CONTAINER] = Array(pack(arrays))
    return reply


def with_record(reply, name, record):
    reply.content[name] = record
    return reply


def test_result_does_not_depend_on_the_order_of_arrival(federate):
    first, _ = federate()
    second, _ = federate(order=lambda partition: -partition)
    third, _ = federate(seed=2)
    assert hashes(first) == hashes(second)
    assert hashes(first)[:2] != hashes(third)[:2]
    lines = [d.read_metrics() for d in (first, second)]
    assert [line.val_accuracy for line in lines[0]] == [
        line.val_accuracy for line in lines[1]
    ]


@pytest.mark.parametrize("method", ["fedbnn", "fedavg"])
def test_bad_replies_are_named_and_the_round_goes_on(federate, method):
    spoilt = {
        0: lambda reply: with_arrays(reply, lambda a: np.full_like(a, np.nan)),
        1: lambda reply: with_arrays(reply, lambda a: a[:1]),
        2: lambda reply: error_reply(reply, 2, "out of memory"),
        3: lambda reply: error_reply(reply, 5, "Node Unavailable", from_superlink=True),
        4: lambda reply: error_reply(reply, 2, "x" * 1_000_000),
        5: lambda reply: with_record(reply, "extra", ArrayRecord([np.ones(10**6)])),
        6: lambda reply: with_record(reply, "note", ConfigRecord({"a": "x" * 10**6})),
        7: lambda reply: with_record(reply, "rotations", ConfigRecord({"a": "x"})),
    }
    reasons = {
        0: "values that are not finite",
        1: "must be float32",
        2: "error 2: out of memory",
        3: "error 5: Node Unavailable",
        4: "error 2: xxx",
        5: "got ArrayRecord 'arrays', ArrayRecord 'rotations', MetricRecord 'metrics', "
        "ArrayRecord 'extra'",
        6: "ConfigRecord 'note'",
        7: "ConfigRecord 'rotations'",
    }

    def fault(partition, round_index, reply):
        bad = round_index == 1 and partition in spoilt
        return spoilt[partition](reply) if bad else reply

    directory, _ = federate(
        fault=fault, clients=10, clients_per_round=10, quorum=0.2, method=method
    )
    line = directory.read_metrics()[1]
    assert line.clients == [8, 9]
    assert line.asked == list(range(10))
    assert {entry.client for entry in line.rejected} == set(spoilt)
    for entry in line.rejected:
        assert reasons[entry.client] in entry.reason
        assert len(entry.reason) <= 300
    assert directory.read_json("summary.json")["status"] == "completed"


def test_answer_to_an_earlier_round_does_not_count(federate):
    def fault(partition, round_index, reply):
        if (round_index, partition) == (1, 2):
            reply.content["metrics"]["round"] = 0
        return reply

    directory, _ = federate(fault=fault, clients_per_round=CLIENTS)
    (entry,) = directory.read_metrics()[1].rejected
    assert entry == Rejection(2, "it answers round 0, expected 1", entry.size_bytes)
    assert entry.size_bytes > 0


def test_reply_of_a_node_that_was_not_asked_does_not_count(data, tmp_path):
    config = tiny_config(data, tmp_path, client_threads=1)
    grid = LocalGrid(CLIENTS, config.to_mapping())
    roster = Roster(config)
    roster.update(grid)
    strategy = FedBNNStrategy(open_run(config, CLIENTS), roster)
    arrays = to_record(strategy.run.broadcast)
    messages = strategy.configure_train(1, arrays, ConfigRecord(), grid)
    ids = grid.push_messages(messages)
    replies = [grid.pull_messages([message_id])[0] for message_id in ids]
    stranger = replies[0]
    stranger.metadata.__dict__["_src_node_id"] = 999
    del stranger.content["metrics"]["partition-id"]
    strategy.aggregate_train(1, replies)
    (line,) = strategy.run.directory.read_metrics()
    assert len(line.clients) == 2
    reason = "it comes from a node that was not asked"
    (entry,) = line.rejected
    assert entry == Rejection(-1, reason, entry.size_bytes)


def test_stragglers_are_left_behind_at_the_deadline(federate):
    def fault(partition, round_index, reply):
        return None if partition in (1, 6) else reply

    directory, _ = federate(
        fault=fault, clients_per_round=CLIENTS, round_timeout_s=1.0, num_server_rounds=2
    )
    for line in directory.read_metrics():
        assert line.missing == [1, 6]
        assert line.clients == [0, 2, 3, 4, 5, 7]


def array_bytes(message):
    return sum(
        len(array.data)
        for record in message.content.array_records.values()
        for array in record.values()
    )


def test_every_byte_that_came_is_counted(federate):
    """Rejected and surplus replies and whole failed attempts travelled too."""
    sent, broken = [], []

    def fault(partition, round_index, reply):
        if round_index == 1 and len(broken) < 3:
            broken.append(partition)
            reply = with_arrays(reply, lambda a: np.full_like(a, np.nan))
        sent.append(array_bytes(reply))
        return reply

    directory, grid = federate(
        fault=fault, clients_per_round=2, over_selection=1, quorum=1.0
    )
    lines = directory.read_metrics()
    (attempt,) = lines[1].failed_attempts
    one = sent[0]
    # The three broken ones, and the surplus one of round 1.
    assert attempt.bytes_up == 3 * one + one
    assert attempt.bytes_down == lines[0].bytes_down
    assert lines[1].bytes_down == 2 * lines[0].bytes_down
    left = sum(map(array_bytes, grid._replies))
    assert 0 < left <= one
    assert sum(line.bytes_up for line in lines) == sum(sent) - left


def test_over_selection_takes_the_first_replies(federate):
    directory, grid = federate(
        clients_per_round=3, over_selection=4, order=lambda partition: -partition
    )
    for line in directory.read_metrics():
        assert len(line.asked) == 7
        assert line.clients == line.asked[-3:]
        assert line.missing == line.asked[:-3]
    # Late replies were fetched and thrown away, but for those of the last round.
    assert len(grid._replies) <= 4


def test_round_below_the_quorum_is_repeated_with_other_clients(federate):
    failed = []

    def fault(partition, round_index, reply):
        if round_index == 1 and len(failed) < 3:
            failed.append(partition)
            return error_reply(reply, 2, "broken")
        return reply

    directory, _ = federate(fault=fault, clients_per_round=3, quorum=0.5)
    line = directory.read_metrics()[1]
    (attempt,) = line.failed_attempts
    assert attempt.asked == sorted(failed)
    assert attempt.accepted == []
    assert len(attempt.rejected) == 3
    assert not set(line.clients) & set(failed)
    assert len(line.clients) == 3


def test_hopeless_round_ends_the_run_and_it_can_be_resumed(federate):
    clean, _ = federate()

    def fault(partition, round_index, reply):
        return error_reply(reply, 2, "broken") if round_index == 2 else reply

    directory, grid = federate(fault=fault, stops=True, max_round_retries=2)
    summary = directory.read_json("summary.json")
    assert summary["status"] == "stopped"
    assert summary["rounds"] == 2
    assert "3 attempts" in summary["reason"]
    assert len(summary["failed_attempts"]) == 3
    assert [r for r, _ in grid.asked].count(2) == 9
    assert len(directory.read_metrics()) == 2
    assert directory.read_state("final.safetensors")
    resumed, _ = federate(resume=str(directory.path))
    assert (
        RunDirectory(directory.path).read_json("summary.json")["status"] == "completed"
    )
    assert hashes(resumed) == hashes(clean)


@pytest.mark.parametrize("good_rounds", [0, 2])
def test_a_run_that_stops_early_offers_its_best_model(federate, tmp_path, good_rounds):
    def fault(partition, round_index, reply):
        return reply if round_index < good_rounds else error_reply(reply, 2, "broken")

    directory, _ = federate(
        fault=fault, models=tmp_path / "models", stops=True, max_round_retries=0
    )
    summary = directory.read_json("summary.json")
    assert (summary["status"], summary["rounds"]) == ("stopped", good_rounds)
    stored = list((tmp_path / "models").glob("*/model.fbnn"))
    assert len(stored) == (CLIENTS if good_rounds else 0)
    for model in stored:
        assert model.read_bytes() == (directory.path / "model.fbnn").read_bytes()


def test_an_error_of_a_client_is_one_line_in_the_metrics(federate):
    def fault(partition, round_index, reply):
        if round_index == 0 and partition == 2:
            return error_reply(reply, 2, "a\nb\rINFO : round 9/9" + "x" * 999)
        return reply

    directory, _ = federate(fault=fault, clients_per_round=CLIENTS)
    (entry,) = directory.read_metrics()[0].rejected
    assert entry.reason.isprintable()
    assert len(entry.reason) <= 300


def test_resume_takes_the_stored_config_on_server_and_clients(federate):
    clean, _ = federate(lr=0.03, seed=5)

    def crash(partition, round_index, reply):
        if round_index == 2:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        federate(fault=crash, lr=0.03, seed=5, run_name="crashed")
    path = next(clean.path.parent.glob("*-crashed"))
    # This run's own config has another rate and seed: they must not matter.
    resumed, _ = federate(resume=str(path), lr=0.7, seed=9)
    assert hashes(resumed) == hashes(clean)


@pytest.mark.parametrize("clients_per_round", [7, CLIENTS])
def test_client_that_keeps_sending_nonsense_is_left_out(federate, clients_per_round):
    def fault(partition, round_index, reply):
        if partition == 2:
            return with_arrays(reply, lambda a: np.full_like(a, np.inf))
        return reply

    directory, _ = federate(
        fault=fault,
        clients_per_round=clients_per_round,
        num_server_rounds=7,
        quarantine_after=2,
        quarantine_rounds=2,
    )
    lines = directory.read_metrics()
    caught = next(n for n, line in enumerate(lines) if line.quarantined)
    assert lines[caught].quarantined == [2]
    assert all(2 not in line.asked for line in lines[caught + 1 : caught + 3])
    assert all(2 not in line.clients for line in lines)


def test_run_survives_thirty_percent_dropouts(federate):
    generator = np.random.default_rng(3)
    dropped = []

    def fault(partition, round_index, reply):
        if generator.random() < 0.3:
            dropped.append(partition)
            return error_reply(reply, 2, "lost")
        return reply

    directory, _ = federate(fault=fault, clients_per_round=5, num_server_rounds=8)
    lines = directory.read_metrics()
    assert len(lines) == 8
    noted = sum(
        len(part.rejected) for line in lines for part in (line, *line.failed_attempts)
    )
    assert noted == len(dropped) > 5
    assert directory.read_json("summary.json")["status"] == "completed"


def test_private_run_tells_its_epsilon(federate):
    pytest.importorskip("dp_accounting")
    directory, _ = federate(
        privacy="local", privacy_noise_multiplier=20.0, privacy_clip_norm=0.5
    )
    epsilons = [line.epsilon for line in directory.read_metrics()]
    assert 0 < epsilons[0] <= epsilons[1] <= epsilons[2]
    summary = directory.read_json("summary.json")
    assert (summary["epsilon"], summary["delta"]) == (epsilons[2], 1e-5)
    for line in directory.read_metrics():
        assert line.train_loss is None
        assert line.examples == len(line.clients) == 3


@pytest.mark.parametrize("method", ["fedbnn", "fedavg"])
def test_nobody_learns_that_a_private_client_diverged(federate, method):
    pytest.importorskip("dp_accounting")
    directory, _ = federate(
        method=method,
        privacy="local",
        num_server_rounds=1,
        # Every step multiplies the weights by -999, until they overflow.
        lr=1000.0,
        weight_decay=1.0,
        local_epochs=20,
    )
    (line,) = directory.read_metrics()
    assert line.rejected == []
    assert len(line.clients) == 3


def test_client_that_claims_more_images_than_it_has_is_rejected(federate):
    def fault(partition, round_index, reply):
        if partition == 5:
            reply.content["metrics"]["num-examples"] = 100
        return reply

    for settings, bound in ({}, 8), ({"privacy": "local"}, 1):
        if settings:
            pytest.importorskip("dp_accounting")
        directory, _ = federate(
            fault=fault, clients_per_round=CLIENTS, num_server_rounds=1, **settings
        )
        (entry,) = directory.read_metrics()[0].rejected
        reason = f"num-examples must be an integer in 1..{bound}, got 100"
        assert (entry.client, entry.reason) == (5, reason)


def test_trimmed_mean_of_too_few_replies_is_told(federate):
    def fault(partition, round_index, reply):
        lost = round_index == 1 and partition < 4
        return error_reply(reply, 2, "lost") if lost else reply

    directory, _ = federate(
        fault=fault, clients_per_round=CLIENTS, robust="trimmed-mean", trim_fraction=0.2
    )
    # A fifth of eight clients is two; of four values only one can go at each end.
    assert [line.trimmed for line in directory.read_metrics()] == [2, 1, 2]


@pytest.mark.parametrize("rule", ["clip", "median", "trimmed-mean"])
def test_robust_rules_run_end_to_end(federate, rule):
    directory, _ = federate(robust=rule, num_server_rounds=1)
    assert directory.read_json("summary.json")["status"] == "completed"


def test_disk_that_fails_during_training_ends_the_run_and_it_can_be_resumed(
    federate, tmp_path
):
    clean, _ = federate()

    def fault(partition, round_index, reply):
        (path,) = tmp_path.glob("*-disk")
        if round_index == 1 and (path / "checkpoints").is_dir():
            (path / "checkpoints").rename(path / "away")
            (path / "checkpoints").write_text("in the way")
        return reply

    directory, grid = federate(fault=fault, stops=True, run_name="disk")
    summary = directory.read_json("summary.json")
    assert (summary["status"], summary["rounds"]) == ("stopped", 2)
    assert "cannot write" in summary["reason"]
    assert "fedbnn resume" in summary["reason"]
    assert max(round_index for round_index, _ in grid.asked) == 1
    (directory.path / "checkpoints").unlink()
    (directory.path / "away").rename(directory.path / "checkpoints")
    resumed, _ = federate(resume=str(directory.path))
    assert hashes(resumed) == hashes(clean)


def test_unwritable_output_is_found_before_training(data, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    config = tiny_config(data, blocked / "runs").to_mapping()
    grid = LocalGrid(CLIENTS, config)
    with pytest.raises(RunError, match="set output-dir to a folder you can write to"):
        run_server(grid, config)
    assert grid.asked == []


def test_full_disk_is_found_before_training(data, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10_000))
    config = tiny_config(data, tmp_path).to_mapping()
    grid = LocalGrid(CLIENTS, config)
    with pytest.raises(RunError, match=r"needs about .* MB .* only 0\.0 MB are free"):
        run_server(grid, config)
    assert grid.asked == []


def test_a_malformed_container_is_rejected_with_the_reason(federate):
    def fault(partition, round_index, reply):
        if partition == 2:
            record = reply.content.array_records["arrays"]
            content = record[CONTAINER].numpy()
            record[CONTAINER] = Array(content[:-1])
        return reply

    directory, _ = federate(fault=fault, clients_per_round=CLIENTS)
    for line in directory.read_metrics():
        (entry,) = line.rejected
        assert entry.client == 2
        assert "bytes by its index" in entry.reason
        assert entry.size_bytes > 0
        assert line.clients == [0, 1, 3, 4, 5, 6, 7]

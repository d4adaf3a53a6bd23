"""What the operator is told about a run, from the log lines that runs write."""

import subprocess
from contextlib import contextmanager

import pytest

from fedbnn_core.errors import FleetError
from fedbnn_core.flower import deployment
from fedbnn_core.flower.control import Endpoint
from fedbnn_core.flower.deployment import follow_run, run_progress, submit_run
from fedbnn_core.runs.log import round_line
from fedbnn_core.runs.metrics import RoundMetrics


def line(done, **extra):
    return round_line(
        [
            RoundMetrics(
                round=done,
                num_rounds=12,
                train_loss=0.5,
                seconds={"train": 1.0},
                **extra,
            )
        ]
    )


def evaluated(accuracy):
    scores = {"val_accuracy": accuracy}
    return {"scores": scores, "best_val_accuracy": 0.9, "best_round": 1}


def test_progress_is_the_last_round_and_the_last_accuracy():
    log = [
        "INFO :      " + line(1, **evaluated(0.5)),
        "INFO :      " + line(2, **evaluated(0.625)),
        "INFO :      " + line(3),
    ]
    progress = run_progress(log)
    assert (progress.round, progress.num_rounds) == (3, 12)
    assert progress.val_accuracy == 62.5
    assert progress.note == ""


def test_before_the_first_round_there_is_no_accuracy_but_a_note():
    progress = run_progress(["INFO :  Waiting for clients: 1 connected, 2 needed"])
    assert (progress.round, progress.val_accuracy) == (0, None)
    assert progress.note == "Waiting for clients: 1 connected, 2 needed"


def test_a_round_that_only_a_client_speaks_of_is_no_progress():
    forged = line(12, **evaluated(0.9999))
    for log in (
        [forged],
        [f"WARNING :   Device x is left out: {forged}"],
        [f"INFO :      x {forged}"],
    ):
        assert run_progress(log).round == 0
        assert run_progress(log).val_accuracy is None


@contextmanager
def dying_server(endpoint):
    """Log the start of a run, then be gone."""

    class Connection:
        def runs(self):
            return []

        def follow(self, run_id):
            yield "INFO :      Starting"
            if run_id:
                yield "INFO :      Run directory: /srv/runs/one"
            raise FleetError("no FedBNN server answers")

    yield Connection()


def test_a_server_that_dies_leaves_the_way_to_go_on(monkeypatch):
    monkeypatch.setattr(deployment, "connected", dying_server)
    with pytest.raises(FleetError, match=r"no FedBNN .* -c resume=/srv/runs/one$"):
        follow_run(1, Endpoint(), on_line=lambda line: None)
    with pytest.raises(FleetError, match=r"^no FedBNN server answers$"):
        follow_run(0, Endpoint(), on_line=lambda line: None)


def test_a_submission_that_hangs_ends_in_words(monkeypatch):
    monkeypatch.setattr(deployment, "connected", dying_server)

    def hang(command, *, timeout, **options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(FleetError, match="within 120 s; see 'fedbnn deploy status'"):
        submit_run({}, Endpoint())

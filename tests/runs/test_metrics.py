"""Metrics and summary as they are written, and those of older runs."""

import pytest

from fedbnn_core.runs.metrics import FailedAttempt, Rejection, RoundMetrics, Summary

ATTEMPT = {
    "asked": [1, 2],
    "accepted": [1],
    "rejected": [{"client": 2, "reason": "NaN"}],
    "missing": [],
    "bytes_up": 10,
    "bytes_down": 20,
    "quarantined": [2],
}
LINE = {
    "round": 3,
    "num_rounds": 9,
    "val_accuracy": 0.5,
    "val_loss": 1.0,
    "val_accuracy_weights": 0.25,
    "best_round": 2,
    "best_val_accuracy": 0.625,
    "train_loss": None,
    "lr": 0.1,
    "t": 0.25,
    "layers": {"convs.0": {"alpha": 0.5, "cos_phi": None}},
    "clients": [3, 5],
    "examples": 40,
    "asked": [3, 4, 5],
    "missing": [],
    "rejected": [{"client": 4, "reason": "late"}],
    "update_norm": 3.5,
    "bytes_up": 2180,
    "bytes_down": 3000,
    "failed_attempts": [ATTEMPT],
    "bytes_up_nominal": 1200,
    "bytes_down_nominal": 2000,
    "bits_up": 1.27,
    "bits_down": 8.23,
    "quarantined": [4],
    "trimmed": 1,
    "epsilon": 2.5,
    "seconds": {"train": 1.0, "aggregate": 0.5, "evaluate": 0.25},
    "elapsed_seconds": 7.5,
}
SUMMARY = {
    "status": "completed",
    "method": "fedavg",
    "model": "cnn4",
    "dataset": "fmnist-mini",
    "partition": "iid",
    "rounds": 9,
    "clients": 20,
    "best_round": 2,
    "val_accuracy": 0.625,
    "val_loss": 1.0,
    "test_accuracy": 0.5,
    "test_loss": 1.25,
    "ptb_test_accuracy": 0.25,
    "ptb_l1_test_accuracy": 0.2,
    "test_confusion": [[1, 2], [3, 4]],
    "float32_bytes": 4000,
    "one_bit_bytes": None,
    "best_sha256": "ab",
    "final_sha256": "cd",
    "seconds": 12.5,
    "directory": "/runs/x",
}


def without(mapping, *keys):
    return {key: value for key, value in mapping.items() if key not in keys}


@pytest.mark.parametrize(
    "line",
    [
        LINE,
        without(LINE, "trimmed", "epsilon"),
        without(LINE, "val_accuracy", "val_loss", "val_accuracy_weights"),
    ],
)
def test_a_line_keeps_its_keys_their_order_and_values(line):
    written = RoundMetrics.from_json(line).to_json()
    assert written == line
    assert list(written) == list(line)


def test_a_line_is_read_into_types():
    metrics = RoundMetrics.from_json(LINE)
    assert metrics.val_accuracy == 0.5
    assert metrics.total_seconds == 1.75
    assert metrics.rejected == [Rejection(4, "late")]
    (attempt,) = metrics.failed_attempts
    assert isinstance(attempt, FailedAttempt)
    assert attempt.rejected == [Rejection(2, "NaN")]


@pytest.mark.parametrize("key", list(LINE))
def test_a_line_of_an_older_run_may_lack_any_key_but_its_number(key):
    shorter = without(LINE, key)
    if key == "round":
        with pytest.raises(ValueError, match="number of a round"):
            RoundMetrics.from_json(shorter)
        return
    written = RoundMetrics.from_json(shorter).to_json()
    assert without(written, key) == shorter
    assert without(RoundMetrics.from_json(LINE | {key: None}).to_json(), key) == shorter


STOPPED = SUMMARY | {
    "status": "stopped",
    "reason": "no quorum",
    "failed_attempts": [ATTEMPT],
}


@pytest.mark.parametrize(
    "summary",
    [
        SUMMARY,
        SUMMARY | {"epsilon": 2.0, "delta": 1e-5, "one_bit_bytes": 125},
        STOPPED,
        without(
            STOPPED,
            *("best_round", "val_accuracy", "val_loss", "test_accuracy", "test_loss"),
            *("ptb_test_accuracy", "ptb_l1_test_accuracy", "test_confusion"),
            *("float32_bytes", "one_bit_bytes", "best_sha256"),
        ),
    ],
    ids=["float", "private", "stopped", "never evaluated"],
)
def test_a_summary_keeps_its_keys_and_values(summary):
    assert Summary.from_json(summary).to_json() == summary


def test_keys_of_a_summary_have_the_order_of_the_file():
    assert list(Summary.from_json(SUMMARY).to_json()) == list(SUMMARY)


@pytest.mark.parametrize("key", list(SUMMARY))
def test_a_summary_of_an_older_run_may_lack_any_key(key):
    read = Summary.from_json(without(SUMMARY, key))
    assert not read.stopped
    other = "rounds" if key != "rounds" else "clients"
    assert getattr(read, other) == SUMMARY[other]

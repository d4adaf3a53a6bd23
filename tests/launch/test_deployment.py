"""What the operator is told about a run, from the log lines that runs write."""

from fedbnn_core.launch.deployment import run_progress
from server_app.progress import round_line


def line(done, **extra):
    return round_line(
        [
            {
                "round": done,
                "num_rounds": 12,
                "train_loss": 0.5,
                "rejected": [],
                "seconds": {"train": 1.0},
                **extra,
            }
        ]
    )


def evaluated(accuracy):
    return {"val_accuracy": accuracy, "best_val_accuracy": 0.9, "best_round": 1}


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

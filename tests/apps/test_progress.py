"""The one log line of a round."""

from server_app.progress import round_line


def line(number, seconds, **extra):
    return {
        "round": number,
        "num_rounds": 40,
        "train_loss": None,
        "rejected": [],
        "seconds": {"train": seconds - 0.5, "evaluate": 0.5},
        # Of a run that waited long before it was resumed.
        "elapsed_seconds": 9000.0,
        **extra,
    }


def test_time_left_follows_the_rounds_not_the_waiting():
    assert round_line([line(19, 6.0), line(20, 4.0)]) == "round 20/40  4.0 s  1:40 left"


def test_line_tells_what_there_is_to_tell():
    text = round_line(
        [
            line(
                7,
                2.0,
                val_accuracy=0.5,
                best_val_accuracy=0.625,
                best_round=3,
                train_loss=1.25,
                epsilon=4.5,
                rejected=[{}, {}],
            )
        ]
    )
    assert text == (
        "round  7/40  val 50.00 %  (best 62.50 % in round 3)  loss 1.250  "
        "epsilon 4.50  2 replies rejected  2.0 s  1:06 left"
    )

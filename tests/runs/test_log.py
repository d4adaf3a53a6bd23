"""A run's log: what is written is read back, and clients' text is not read so."""

from pathlib import Path

import pytest

from fedbnn_core.runs.log import (
    RoundNews,
    directory_in,
    directory_line,
    one_line,
    plain_line,
    round_in,
    round_line,
    split_level,
    stopped_in,
    stopped_line,
)
from fedbnn_core.runs.metrics import Rejection, RoundMetrics


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("INFO :      round 1/2", ("INFO", "round 1/2")),
        ("\x1b[91mERROR \x1b[0m:    Stopped: a: b\n", ("ERROR", "Stopped: a: b")),
        ("Stopped: bye", ("", "Stopped: bye")),
        (" INFO : x", ("", " INFO : x")),
    ],
)
def test_a_line_is_split_into_level_and_message(line, expected):
    assert split_level(line) == expected


def test_only_a_message_of_its_own_names_the_directory():
    assert directory_in("INFO :      Run directory: /r/a b") == Path("/r/a b")
    for line in (
        "Run directory: /etc",
        "WARNING :   Run directory: /etc",
        "WARNING :   Device x is excluded: Run directory: /etc",
        "INFO :      Finished. Run directory: /etc",
    ):
        assert directory_in(line) is None


def test_text_of_a_client_is_one_printable_line():
    text = one_line("a\nb\r\n\tc\x1b[2Jd\u2028e\x00f" + "x" * 1000)
    assert text.startswith("a b c [2Jd e f")
    assert text.isprintable()
    assert len(text) <= 300
    assert one_line(None) == "None"


def metrics(number, seconds, **extra):
    return RoundMetrics(
        round=number,
        num_rounds=40,
        seconds={"train": seconds - 0.5, "evaluate": 0.5},
        # Of a run that waited long before it was resumed.
        elapsed_seconds=9000.0,
        **extra,
    )


FULL = metrics(
    7,
    2.0,
    scores={"val_accuracy": 0.5},
    best_val_accuracy=0.625,
    best_round=3,
    train_loss=1.25,
    epsilon=4.5,
    rejected=[Rejection(1, "late"), Rejection(2, "late")],
)


def test_time_left_follows_the_rounds_not_the_waiting():
    text = round_line([metrics(19, 6.0), metrics(20, 4.0)])
    assert text == "round 20/40  4.0 s  1:40 left"


def test_line_of_a_round_tells_what_there_is_to_tell():
    assert round_line([FULL]) == (
        "round  7/40  val 50.00 %  (best 62.50 % in round 3)  loss 1.250  "
        "epsilon 4.50  2 replies rejected  2.0 s  1:06 left"
    )


LEVELS = {"INFO": "\x1b[92mINFO \x1b[0m:      ", "ERROR": "\x1b[91mERROR \x1b[0m:     "}


@pytest.mark.parametrize(
    ("level", "message", "parse", "expected"),
    [
        ("INFO", round_line([FULL]), round_in, RoundNews(7, 40, 50.0)),
        ("INFO", round_line([metrics(9, 4.0)]), round_in, RoundNews(9, 40, None)),
        ("INFO", directory_line(Path("/r/a b")), directory_in, Path("/r/a b")),
        ("ERROR", stopped_line("no: quorum"), stopped_in, "no: quorum"),
    ],
)
def test_what_is_written_is_read_back(level, message, parse, expected):
    assert parse(f"{LEVELS[level]}{message}\n") == expected
    assert plain_line(f"{LEVELS['INFO']}{message}\n") == message
    # Neither another level nor text in front of it passes for the line.
    assert parse(f"WARNING :   {message}") is None
    assert parse(f"{LEVELS[level]}Device x: {message}") is None

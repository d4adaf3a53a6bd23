"""Reading a run's log, and keeping clients' text from being read as such."""

from pathlib import Path

import pytest

from fedbnn_core.runs.log import directory_in, one_line, split_level


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
        "WARNING :   Device x is left out: Run directory: /etc",
        "INFO :      Finished. Run directory: /etc",
    ):
        assert directory_in(line) is None


def test_text_of_a_client_is_one_printable_line():
    text = one_line("a\nb\r\n\tc\x1b[2Jd\u2028e\x00f" + "x" * 1000)
    assert text.startswith("a b c [2Jd e f")
    assert text.isprintable()
    assert len(text) <= 300
    assert one_line(None) == "None"

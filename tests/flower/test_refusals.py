"""What Flower's log says, in words."""

import pytest

from fedbnn_core.flower.refusals import explain


@pytest.mark.parametrize(
    ("line", "words", "may_pass"),
    [
        ("[code: 2004] Failed to activate SuperNode.", "does not accept", True),
        ("Invalid timestamp", "clocks differ", False),
        ("ERROR : Exit Code: 606", "different versions of Flower", False),
        ("ERROR : Exit Code: 302", "key in the bundle", False),
        ("something new", "something new", False),
    ],
)
def test_refusals_are_put_into_words(line, words, may_pass):
    explanation = explain(["INFO : Starting Flower SuperNode", line])
    assert words in explanation.text
    assert explanation.may_pass == may_pass

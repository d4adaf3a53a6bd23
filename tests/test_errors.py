"""Words from outside never steer a terminal."""

import pytest
from rich.console import Console

from fedbnn_core.data.dataset import Dataset
from fedbnn_core.errors import DataError, FedBNNError, ReplyError, printable
from fedbnn_core.runs.log import one_line, plain_line

# Clear the screen, set the title, ring, move up, the 8-bit escape, turn the text round.
STEERING = ["\x1b[2J", "\x1b]0;title\x07", "\a", "\r\x1b[1A", "\x9b31m", "\u202e", "\b"]


@pytest.mark.parametrize("evil", STEERING)
@pytest.mark.parametrize(
    "shown",
    [
        printable,
        one_line,
        plain_line,
        lambda text: plain_line(f"INFO :      {text}"),
        lambda text: str(FedBNNError(text)),
        lambda text: str(DataError(f"cannot read {text}")),
        lambda text: str(ReplyError(text)),
    ],
)
def test_nothing_that_is_shown_steers_a_terminal(evil, shown):
    text = shown(f"before{evil}after")
    assert text.startswith(("before", "cannot read before"))
    assert text.endswith("after")
    assert text.isprintable()


@pytest.mark.parametrize(
    "text", ["Größe 3", "two\nlines", "猫", "narrow\u202fspace", "a\u00a0b", ""]
)
def test_text_stays_as_it_is(text):
    assert printable(text) == text
    assert str(FedBNNError(text)) == text


@pytest.mark.parametrize("evil", STEERING)
def test_class_names_reach_the_terminal_as_text(evil):
    import numpy as np

    images = np.zeros((1, 1, 2, 2), np.uint8)
    labels = np.zeros(1, np.int64)
    names = (f"cat{evil}", "dog")
    dataset = Dataset("d", images, labels, images, labels, names, (0.5,), (0.5,))
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(dataset.class_names[0], markup=False)
    assert console.export_text().strip().isprintable()
    assert dataset.class_names[1] == "dog"

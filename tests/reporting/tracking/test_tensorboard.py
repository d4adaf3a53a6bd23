"""Event files are read back by TensorBoard's own reader."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedbnn_core.reporting.tracking.tensorboard import TensorBoardTracker

accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator"
)


def read(directory):
    events = accumulator.EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    return events


def test_scalars_and_picture_come_back(tmp_path, description, lines, summary):
    tracker = TensorBoardTracker(tmp_path, description, 1)
    for line in lines:
        tracker.round_finished(line)
    tracker.run_finished(summary)
    events = read(tmp_path)

    def points(tag):
        return [(event.step, event.value) for event in events.Scalars(tag)]

    assert points("accuracy/val") == [(1, 0.5)]
    assert points("schedule/t") == [(1, 0.25), (2, 4.0)]
    assert points("alpha_beta/convs.1") == [(1, 0.375)]
    assert points("cos_phi/convs.1") == [(1, 0.875)]
    assert points("bytes/up") == [(1, 1000.0), (2, 1000.0)]
    assert points("test/accuracy") == [(1, 0.625)]
    (picture,) = events.Images("test/confusion")
    pixels = Image.open(io.BytesIO(picture.encoded_image_string))
    assert min(pixels.size) >= 300
    assert len(np.unique(np.asarray(pixels).reshape(-1, 3), axis=0)) > 3


def test_lines_are_readable_while_the_run_goes_on(tmp_path, description, lines):
    tracker = TensorBoardTracker(tmp_path, description, 1)
    tracker.round_finished(lines[0])
    assert [event.step for event in read(tmp_path).Scalars("loss/train")] == [1]


def test_a_resumed_run_replaces_the_rounds_it_repeats(tmp_path, description, lines):
    first = TensorBoardTracker(tmp_path, description, 1)
    for line in lines:
        first.round_finished(line)
    resumed = TensorBoardTracker(tmp_path, description, 2)
    resumed.round_finished(replace(lines[1], lr=0.025))
    rates = [(e.step, e.value) for e in read(tmp_path).Scalars("schedule/lr")]
    assert [step for step, _ in rates] == [1, 2]
    assert rates[1][1] == pytest.approx(0.025)

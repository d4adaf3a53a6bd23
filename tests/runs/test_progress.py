import json
import os

import pytest

from fedbnn_core.runs.metrics import RoundMetrics
from fedbnn_core.runs.progress import RunFollower, seconds_left


def text_of(*numbers):
    return "".join(json.dumps({"round": n, "num_rounds": 9}) + "\n" for n in numbers)


def test_lines_are_read_as_they_come_and_only_when_complete(tmp_path):
    follower = RunFollower(tmp_path)
    assert not follower.poll()
    path = tmp_path / "metrics.jsonl"
    whole = text_of(1, 2, 3)
    cut = len(text_of(1)) + 7
    path.write_text(whole[:cut])
    assert follower.poll()
    assert [one.round for one in follower.rounds] == [1]
    assert not follower.poll()
    with path.open("a") as file:
        file.write(whole[cut:])
    assert follower.poll()
    assert [one.round for one in follower.rounds] == [1, 2, 3]


@pytest.mark.parametrize("replace", [False, True])
def test_a_rewound_file_is_read_again(tmp_path, replace):
    path = tmp_path / "metrics.jsonl"
    path.write_text(text_of(1, 2, 3))
    follower = RunFollower(tmp_path)
    follower.poll()
    before = follower.generation
    if replace:
        # A resumed run replaces the file; it may be as long as the old one.
        other = tmp_path / "other"
        other.write_text(text_of(1, 2, 4))
        os.replace(other, path)
    else:
        path.write_text(text_of(1))
    assert follower.poll()
    assert follower.generation == before + 1
    rounds = [one.round for one in follower.rounds]
    assert rounds == ([1, 2, 4] if replace else [1])


def test_the_round_under_way_is_told_until_its_line_is_there(tmp_path):
    follower = RunFollower(tmp_path)
    assert follower.current_round() is None
    now = {"round": 2, "clients": 10, "done": 4, "rejected": 1}
    (tmp_path / "progress.json").write_text(json.dumps(now))
    (tmp_path / "metrics.jsonl").write_text(text_of(1))
    follower.poll()
    assert follower.current_round() == now
    (tmp_path / "metrics.jsonl").write_text(text_of(1, 2))
    follower.poll()
    assert follower.current_round() is None


def test_time_left_is_that_of_the_ten_newest_rounds():
    def line(number, seconds):
        parts = {"train": seconds - 1.0, "aggregate": 0.5, "evaluate": 0.5}
        return RoundMetrics(round=number, num_rounds=40, seconds=parts)

    lines = [line(n, 100.0) for n in range(1, 11)]
    lines += [line(n, 4.0) for n in range(11, 21)]
    assert seconds_left(lines) == pytest.approx(20 * 4.0)
    assert seconds_left([]) is None

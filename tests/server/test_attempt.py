"""One attempt at a round: which replies count, and when it is over."""

import numpy as np
import pytest

from fedbnn_core.errors import ReplyError
from fedbnn_core.server.attempt import RoundAttempt
from fedbnn_core.server.reply import Reply


def reply(client):
    return lambda: Reply(client, 1, {"w": np.zeros(2, np.float32)})


def broken():
    raise ReplyError("a\nb")


def test_replies_are_taken_rejected_or_missing(tmp_path):
    seen = []
    with RoundAttempt(
        [1, 2, 3, 4],
        quorum=2,
        wanted=3,
        folder=tmp_path,
        on_change=lambda attempt: seen.append(
            (attempt.accepted, len(attempt.record.rejected))
        ),
    ) as attempt:
        attempt.take(3, reply(3))
        attempt.take(2, broken)
        attempt.take(9, reply(9))
        assert not attempt.has_quorum
        attempt.take(1, reply(1))
        assert attempt.has_quorum
        assert not attempt.is_full
        replies = attempt.close(bytes_up=70)
        assert [r.partition_id for r in replies] == [1, 3]
        assert attempt.record.missing == [4]
        assert attempt.record.bytes_up == 70
        told = [(r.client, r.reason) for r in attempt.record.rejected]
        assert told == [(2, "a b"), (9, "it comes from a node that was not asked")]
    assert seen == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 2)]
    assert list(tmp_path.iterdir()) == []


def test_an_error_that_is_no_bad_reply_gets_through(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        RoundAttempt([1], quorum=1, wanted=1, folder=tmp_path) as attempt,
    ):
        attempt.take(1, lambda: 1 / 0)

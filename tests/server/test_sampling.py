"""The draw of a round's clients."""

from collections import Counter

import pytest

from fedbnn_core.errors import RunError
from fedbnn_core.server.sampling import sample_clients

POOL = range(20)


def draw(pool=POOL, count=5, **position):
    return sample_clients(pool, count, **{"seed": 1, "round_index": 0} | position)


def test_draw_depends_on_seed_round_and_attempt_only():
    assert draw() == draw(pool=list(range(19, -1, -1)))
    others = [draw(seed=2), draw(round_index=1), draw(attempt=1), draw(attempt=2)]
    assert len({tuple(draw()), *map(tuple, others)}) == 5


def test_draw_has_no_duplicates_and_is_sorted():
    for round_index in range(50):
        chosen = draw(round_index=round_index)
        assert chosen == sorted(set(chosen))
        assert len(chosen) == 5


def test_all_clients_are_drawn_equally_often():
    counts = Counter(c for r in range(2000) for c in draw(round_index=r))
    # 500 expected each; the standard deviation is 19.
    assert all(400 < counts[client] < 600 for client in range(20))


def test_small_pool_is_taken_whole():
    assert draw(pool=[3, 1], count=5) == [1, 3]
    with pytest.raises(RunError, match="no client is connected"):
        draw(pool=[])


def test_repeated_round_takes_other_clients_first():
    first = draw()
    second = draw(attempt=1, tried=first)
    assert not set(first) & set(second)
    rest = set(range(20)) - set(first) - set(second)
    third = draw(count=12, attempt=2, tried=[*first, *second])
    assert rest < set(third)
    assert len(third) == 12

"""Who is left out, for how long, and who comes back early."""

from fedbnn_core.server.quarantine import Quarantine


def test_client_is_left_out_after_bad_replies_in_a_row():
    quarantine = Quarantine(after=2, rounds=3)
    assert quarantine.record(0, good=[1], bad=[4]) == []
    assert quarantine.record(1, good=[1], bad=[4]) == [4]
    assert [4 in quarantine.excluded(r) for r in range(1, 7)] == [
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    assert quarantine.admitted([1, 2, 4], 2, needed=2) == [1, 2]


def test_good_reply_clears_the_record():
    quarantine = Quarantine(after=2, rounds=3)
    for round_index in range(10):
        is_bad = round_index % 2 == 0
        quarantine.record(
            round_index, good=[] if is_bad else [4], bad=[4] if is_bad else []
        )
    assert quarantine.excluded(10) == set()


def test_relapse_is_caught_at_once():
    quarantine = Quarantine(after=3, rounds=2)
    for round_index in range(3):
        quarantine.record(round_index, good=[], bad=[4])
    assert quarantine.excluded(5) == set()
    assert quarantine.record(5, good=[], bad=[4]) == [4]


def test_zero_turns_it_off():
    quarantine = Quarantine(after=0, rounds=2)
    for round_index in range(9):
        assert quarantine.record(round_index, good=[], bad=[4]) == []


def test_too_few_others_bring_the_earliest_back():
    quarantine = Quarantine(after=1, rounds=5)
    quarantine.record(0, good=[], bad=[3])
    quarantine.record(1, good=[], bad=[2])
    assert quarantine.admitted([1, 2, 3], 2, needed=1) == [1]
    assert quarantine.admitted([1, 2, 3], 2, needed=2) == [1, 3]
    assert quarantine.admitted([1, 2, 3], 2, needed=9) == [1, 2, 3]


def test_state_survives_a_checkpoint():
    quarantine = Quarantine(after=2, rounds=3)
    quarantine.record(0, good=[], bad=[1, 2])
    quarantine.record(1, good=[], bad=[1])
    restored = Quarantine(after=2, rounds=3)
    restored.load_json(quarantine.to_json())
    assert restored.excluded(2) == {1}
    assert restored.record(2, good=[], bad=[2]) == [2]

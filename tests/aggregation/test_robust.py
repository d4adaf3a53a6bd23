"""Robust rules against sorting by hand, and against real attackers."""

from dataclasses import replace

import numpy as np
import pytest

from fedbnn_core.aggregation.norms import update_norm
from fedbnn_core.aggregation.robust import (
    aggregation_rule,
    median_array,
    planned_trim,
    trimmed_mean_array,
)
from fedbnn_core.config import RunConfig
from fedbnn_core.methods import create_method
from fedbnn_core.server.reply import Reply, clip_replies
from tests.methods.test_fedbnn import random_replies, rot, std

SIZES = [1, 7, 1 << 16, (1 << 16) + 3]


def random_arrays(count, size, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.normal(size=size).astype(np.float32) for _ in range(count)]


def config(**overrides):
    named = {key.replace("_", "-"): value for key, value in overrides.items()}
    return RunConfig.from_mapping(named, complete=False)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 2, 5, 10])
def test_median_is_numpys_median(size, count):
    arrays = random_arrays(count, size)
    got = median_array(arrays, [1 / count] * count)
    np.testing.assert_allclose(got, np.median(np.stack(arrays), axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    ("count", "planned", "cut"), [(10, 2, 2), (9, 2, 2), (4, 2, 1), (2, 2, 0)]
)
def test_trimmed_mean_cuts_both_ends(count, planned, cut):
    arrays = random_arrays(count, 50)
    got = trimmed_mean_array(arrays, [1 / count] * count, trim=planned)
    for index in range(50):
        values = sorted(float(array[index]) for array in arrays)[cut : count - cut]
        assert got[index] == pytest.approx(sum(values) / len(values), rel=1e-6)


@pytest.mark.parametrize(
    ("fraction", "clients", "cut"),
    [(0.2, 10, 2), (0.1, 30, 3), (0.25, 10, 3), (0.2, 3, 1), (0.0, 10, 0)],
)
def test_cut_is_a_share_of_the_planned_clients_rounded_up(fraction, clients, cut):
    settings = {"trim_fraction": fraction, "clients_per_round": clients}
    assert planned_trim(config(**settings)) == cut


def test_integers_stay_integers():
    scalars = [np.array(value, np.int64) for value in (1, 2, 1000)]
    got = median_array(scalars, [0.1, 0.1, 0.8])
    assert (got.dtype, got.shape, int(got)) == (np.int64, (), 2)


def test_rule_follows_the_config():
    arrays = [np.array([v], np.float32) for v in (0.0, 1.0, 2.0, 3.0, 100.0)]
    weights = [0.2] * 5
    for settings, wanted in [
        ({"robust": "none"}, 21.2),
        ({"robust": "clip"}, 21.2),
        ({"robust": "median"}, 2.0),
        ({"robust": "trimmed-mean", "trim_fraction": 0.2}, 2.0),
        ({"robust": "trimmed-mean", "trim_fraction": 0.0}, 21.2),
    ]:
        got = aggregation_rule(config(**settings))(arrays, weights)
        assert got[0] == pytest.approx(wanted)


def test_median_of_fedbnn_works_in_the_rotated_space_too():
    method = create_method(config(robust="median"), (1, 28, 28), 10)
    replies = random_replies(method, 5)
    result = method.aggregate(replies, method.template.broadcast)
    key = "convs.1.weight"
    weights = np.stack([reply.array(key) for reply in replies])
    np.testing.assert_allclose(
        result.broadcast[key], np.median(weights, axis=0), rtol=1e-6
    )
    rotated = np.stack(
        [
            rot(std(r.array(key)), r.array("convs.1.r1"), r.array("convs.1.r2"))
            for r in replies
        ]
    )
    np.testing.assert_allclose(
        result.candidates["rotated"][key], np.median(rotated, axis=0), atol=1e-4
    )


def replies_under_attack(method, broadcast, *, attackers=2, count=10, seed=0):
    """Return replies near one true update, some of them turned round, ten times."""
    generator = np.random.default_rng(seed)
    truth = {
        name: generator.normal(size=a.shape) * 0.1 if a.dtype.kind == "f" else 0 * a
        for name, a in broadcast.items()
    }
    drawn, replies = random_replies(method, count), []
    # One rotation for all, else the rotated weights have no common mean.
    shared_rotations = {
        name: array for name, array in drawn[0].arrays.items() if name not in broadcast
    }
    for k, reply in enumerate(drawn):
        factor = -10.0 if k < attackers else 1.0
        arrays = dict(reply.arrays)
        for name, before in broadcast.items():
            noise = generator.normal(size=before.shape) * 0.05
            update = factor * (truth[name] + noise)
            if before.dtype.kind == "f":
                arrays[name] = (before + update).astype(before.dtype)
        replies.append(Reply(k, 10, arrays | shared_rotations))
    return replies, truth


def cosine(a, b):
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
@pytest.mark.parametrize("count", [9, 8, 5])
def test_attackers_do_not_gain_by_honest_clients_that_drop_out(rule, count):
    """Ten are planned for and two are hostile; up to five of the others are lost."""
    method = create_method(config(robust=rule), (1, 28, 28), 10)
    broadcast = method.template.broadcast
    replies, truth = replies_under_attack(method, broadcast, count=count)
    key = "convs.2.weight"
    learnt = method.aggregate(replies, broadcast).broadcast[key] - broadcast[key]
    assert cosine(learnt, truth[key]) > 0.8


@pytest.mark.parametrize("rule", ["none", "clip", "median", "trimmed-mean"])
def test_two_of_ten_hostile_clients_turn_the_mean_but_no_robust_rule(rule):
    method = create_method(config(robust=rule), (1, 28, 28), 10)
    broadcast = method.template.broadcast
    replies, truth = replies_under_attack(method, broadcast)
    prepared = replies
    if rule == "clip":
        measured = [
            replace(reply, update_norm=update_norm(reply.arrays, broadcast))
            for reply in replies
        ]
        prepared = clip_replies(measured, broadcast, max_norm=0.0)
    result = method.aggregate(prepared, broadcast)
    key = "convs.2.weight"
    learnt = cosine(result.broadcast[key] - broadcast[key], truth[key])
    # The rotated space: compare with what the honest clients alone would give.
    honest = method.aggregate(replies[2:], broadcast).candidates["rotated"][key]
    rotated = cosine(result.candidates["rotated"][key], honest)
    if rule == "none":
        assert learnt < -0.8
    else:
        assert learnt > 0.8
        assert rotated > 0.8

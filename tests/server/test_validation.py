"""Validation of replies: ten thousand bad ones refused, a thousand good ones taken."""

import io
import math
import re

import numpy as np
import pytest

from fedbnn_core.aggregation.norms import update_norm
from fedbnn_core.errors import ReplyError
from fedbnn_core.server.validation import (
    ReplyRules,
    decode_array,
    validate,
    validate_arrays,
)

ROUND, CLIENT = 7, 3
BROADCAST = {
    "conv.weight": np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 2, 2),
    "bn.running_var": np.ones(2, np.float32),
    "bn.num_batches_tracked": np.array(40, np.int64),
    "conv.omega": np.array(0.5, np.float32),
}
ROTATIONS = {"conv.r1": np.eye(3, dtype=np.float32), "conv.r2": np.eye(4, dtype="f4")}
RULES = ReplyRules(
    arrays=BROADCAST, rotations=ROTATIONS, max_examples=1000, max_update_norm=50.0
)


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=array.dtype == object)
    return file.getvalue()


def orthogonal(size, generator):
    return np.linalg.qr(generator.normal(size=(size, size)))[0].astype(np.float32)


def good_parts(generator):
    """Return the arrays, rotations and metrics of a random honest reply."""
    arrays = {
        name: np.asarray(array + generator.normal(size=array.shape), array.dtype)
        for name, array in BROADCAST.items()
    }
    arrays["bn.running_var"] = np.abs(arrays["bn.running_var"])
    rotations = {name: orthogonal(len(r), generator) for name, r in ROTATIONS.items()}
    metrics = {
        "num-examples": int(generator.integers(1, 1001)),
        "partition-id": CLIENT,
        "round": ROUND,
        "loss": float(generator.exponential()),
        "cos-phi": [float(generator.uniform())],
    }
    return arrays, rotations, metrics


def raw(arrays, rotations, metrics):
    """Return the reply's records as they travel."""
    return {
        "arrays": {name: npy(array) for name, array in arrays.items()},
        "rotations": {name: npy(array) for name, array in rotations.items()},
        "metrics": metrics,
    }


def validated(records):
    return validate(
        RULES, **records, broadcast=BROADCAST, round_index=ROUND, partition_id=CLIENT
    )


def test_a_thousand_honest_replies_are_accepted():
    generator = np.random.default_rng(0)
    for number in range(1000):
        arrays, rotations, metrics = good_parts(generator)
        if number % 3 == 0:  # numpy writes such an array in Fortran order
            arrays["conv.weight"] = np.asfortranarray(arrays["conv.weight"])
        accepted = validated(raw(arrays, rotations, metrics))
        assert accepted.partition_id == CLIENT
        assert accepted.num_examples == metrics["num-examples"]
        assert accepted.loss == metrics["loss"]
        for name, array in (arrays | rotations).items():
            np.testing.assert_array_equal(accepted.array(name), array)
            assert accepted.array(name).flags.c_contiguous


def any_key(generator, mapping):
    return list(mapping)[generator.integers(len(mapping))]


def float_key(generator, arrays):
    names = [name for name, array in arrays.items() if array.dtype.kind == "f"]
    return names[generator.integers(len(names))]


def spoil_value(value):
    def spoil(generator, arrays, rotations, metrics):
        part = arrays if generator.random() < 0.7 else rotations
        name = float_key(generator, part)
        changed = part[name].copy()
        changed.reshape(-1)[generator.integers(changed.size)] = value
        part[name] = changed

    return spoil


def drop_key(generator, arrays, rotations, metrics):
    part = arrays if generator.random() < 0.5 else rotations
    del part[any_key(generator, part)]


def add_key(generator, arrays, rotations, metrics):
    part = arrays if generator.random() < 0.5 else rotations
    part[f"extra{generator.integers(100)}"] = np.zeros(2, np.float32)


def rename_key(generator, arrays, rotations, metrics):
    part = arrays if generator.random() < 0.5 else rotations
    part["renamed"] = part.pop(any_key(generator, part))


def wrong_shape(generator, arrays, rotations, metrics):
    part = arrays if generator.random() < 0.5 else rotations
    name = any_key(generator, part)
    shape = [(3,), (1, *part[name].shape), (0,), (2, 3, 4)][generator.integers(4)]
    part[name] = np.zeros(shape, part[name].dtype)


def wrong_dtype(generator, arrays, rotations, metrics):
    part = arrays if generator.random() < 0.5 else rotations
    name = any_key(generator, part)
    choices = ["f8", "f2", "i4", "u1", "?", "c8", "S4", "U2", ">f4"]
    part[name] = part[name].astype(choices[generator.integers(len(choices))])


def not_orthogonal(generator, arrays, rotations, metrics):
    name = any_key(generator, rotations)
    kind = generator.integers(4)
    r = rotations[name]
    rotations[name] = [
        r * np.float32(1.01),
        np.zeros_like(r),
        r + generator.normal(size=r.shape).astype(np.float32) * np.float32(0.1),
        np.float32(1e38) * r,
    ][kind]


def too_far(generator, arrays, rotations, metrics):
    name = ("conv.weight", "conv.omega")[generator.integers(2)]
    scale = np.float32(10.0 ** generator.uniform(2, 37))
    arrays[name] = np.asarray(arrays[name] + scale, np.float32)


def bad_count(generator, arrays, rotations, metrics):
    values = [0, -1, 1001, 2**70, 1.5, math.nan, "7", None, True, [5]]
    metrics["num-examples"] = values[generator.integers(len(values))]


def bad_round(generator, arrays, rotations, metrics):
    values = [ROUND - 1, ROUND + 1, -1, 7.0, "7", None, [7], [7] * 200_000]
    metrics["round"] = values[generator.integers(len(values))]


def bad_client(generator, arrays, rotations, metrics):
    values = [CLIENT + 1, -1, 3.0, True, "3", None, [3]]
    metrics["partition-id"] = values[generator.integers(len(values))]
    if generator.random() < 0.1:
        del metrics["partition-id"]


def bad_metric(generator, arrays, rotations, metrics):
    values = [math.nan, math.inf, -math.inf, "low", "0.5", b"x", {}, True, 10**400]
    value = values[generator.integers(len(values))]
    if generator.random() < 0.5:
        metrics["loss"] = value
    else:
        metrics["cos-phi"] = [0.5, value]


def huge_metric(generator, arrays, rotations, metrics):
    metrics["cos-phi"] = [0.5] * 10_001


def unknown_metric(generator, arrays, rotations, metrics):
    name = ("speed", "x" * 1_000_000, "", "a\nb\x1b[2J")[generator.integers(4)]
    metrics[name] = (math.nan, 1.0, [1.0])[generator.integers(3)]


def scalar_for_layers(generator, arrays, rotations, metrics):
    metrics["cos-phi"] = (0.5, math.nan, "0.5")[generator.integers(3)]


def no_metrics(generator, arrays, rotations, metrics):
    metrics.clear()


def negative_variance(generator, arrays, rotations, metrics):
    arrays["bn.running_var"] = np.array([1.0, -1e-3], np.float32)


def huge_integer(generator, arrays, rotations, metrics):
    limits = np.iinfo(np.int64)
    value = (limits.min, limits.max, 2**53 + 1, -1)[generator.integers(4)]
    arrays["bn.num_batches_tracked"] = np.array(value, np.int64)


SPOILERS = [
    spoil_value(np.nan),
    spoil_value(np.inf),
    spoil_value(-np.inf),
    drop_key,
    add_key,
    rename_key,
    wrong_shape,
    wrong_dtype,
    not_orthogonal,
    too_far,
    bad_count,
    bad_round,
    bad_client,
    bad_metric,
    huge_metric,
    unknown_metric,
    scalar_for_layers,
    no_metrics,
    negative_variance,
    huge_integer,
]


def spoil_bytes(generator, data):
    """Return a file that is no longer the npy file of the expected array."""
    kind = generator.integers(8)
    if kind == 0:
        return data[: generator.integers(len(data))]
    if kind == 1:
        return data + bytes(generator.integers(1, 64))
    if kind == 2:
        return generator.bytes(len(data))
    if kind == 3:
        return b""
    if kind == 4:  # promises a terabyte
        return re.sub(rb"'shape': \([^)]*\)", b"'shape': (999999999999,)", data)
    if kind == 5:  # wants Python objects
        return npy(np.array([{"a": 1}], dtype=object))
    if kind == 6:
        return data.replace(b"\x93NUMPY\x01", b"\x93NUMPY\x03", 1)
    return data.replace(b"descr", b"__cla", 1)


def test_ten_thousand_malformed_replies_are_refused():
    generator = np.random.default_rng(1)
    for number in range(10_000):
        arrays, rotations, metrics = good_parts(generator)
        if number % 3:
            spoil = SPOILERS[number // 3 % len(SPOILERS)]
            spoil(generator, arrays, rotations, metrics)
            reply = raw(arrays, rotations, metrics)
        else:
            reply = raw(arrays, rotations, metrics)
            part = reply["arrays" if generator.random() < 0.7 else "rotations"]
            name = any_key(generator, part)
            part[name] = spoil_bytes(generator, part[name])
        with pytest.raises(ReplyError) as caught:
            validated(reply)
        assert 5 < len(str(caught.value)) <= 300
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("junk", [None, 5, [], "text", {"conv.weight": 3}, {1: b""}])
def test_junk_in_place_of_records_is_refused(junk):
    arrays, rotations, metrics = good_parts(np.random.default_rng(2))
    reply = raw(arrays, rotations, metrics)
    for name in reply:
        with pytest.raises(ReplyError):
            validated(reply | {name: junk})


def test_total_size_is_bounded_before_decoding():
    arrays, rotations, metrics = good_parts(np.random.default_rng(3))
    reply = raw(arrays, rotations, metrics)
    reply["arrays"]["conv.weight"] = bytes(10**6)
    with pytest.raises(ReplyError, match=r"it has 10\d+ bytes of arrays, allowed \d+"):
        validated(reply)


def test_reason_tells_the_figure():
    arrays, rotations, metrics = good_parts(np.random.default_rng(4))
    rotations["conv.r1"] = rotations["conv.r1"] * np.float32(1.05)
    # |1.05^2 - 1| = 0.1025
    with pytest.raises(ReplyError, match=r"'conv.r1' is not orthogonal.* = 0\.1,"):
        validated(raw(arrays, rotations, metrics))


def test_update_norm_is_the_distance_from_the_broadcast():
    arrays = {
        "a": np.array([3.0, 0.0], np.float32),
        "b": np.array(4.0, np.float32),
        "n": np.array(1000),
        "new": np.array([12.0], np.float32),
    }
    broadcast = {"a": np.zeros(2, np.float32), "b": np.zeros((), np.float32)}
    assert update_norm(arrays, broadcast) == pytest.approx(13.0)
    assert update_norm({"a": np.full(4, 1e30, np.float32)}, {}) == pytest.approx(2e30)


def test_norm_bound_is_sharp():
    arrays = {"w": np.array([3.0, 4.0], np.float32)}
    expected = {"w": np.zeros(2, np.float32)}
    for bound, accepted in ((5.0001, True), (4.9999, False)):
        rules = ReplyRules(arrays=expected, rotations={}, max_update_norm=bound)
        if accepted:
            assert validate_arrays(rules, arrays, {}, 1, expected) == pytest.approx(5.0)
        else:
            with pytest.raises(ReplyError, match="norm of its update is 5, allowed"):
                validate_arrays(rules, arrays, {}, 1, expected)


def test_decoding_copies_nothing():
    data = npy(np.arange(6, dtype=np.float32).reshape(2, 3))
    array = decode_array(data, np.zeros((2, 3), np.float32), name="w")
    assert not array.flags.owndata
    assert array.base is not None
    np.testing.assert_array_equal(array, [[0, 1, 2], [3, 4, 5]])

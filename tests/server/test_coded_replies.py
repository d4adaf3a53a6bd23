"""Malformed replies of every coding: refused with a reason, or harmless."""

import io

import numpy as np
import pytest

from fedbnn_core.errors import ReplyError
from fedbnn_core.server.validation import validate
from tests.tiny_run import TinyFederation, tiny_config, write_data

CODINGS = [
    {"uplink_bits": 16},
    {"uplink_bits": 8},
    {"uplink_bits": 1},
    {"uplink_bits": 1, "downlink_bits": 4},
    {"downlink_bits": 8},
    {"method": "fedavg", "uplink_bits": 1},
    {"method": "fedbat"},
    {"method": "fedmud"},
]


@pytest.fixture(params=CODINGS, ids=str)
def exchange(request, tmp_path):
    """Return a federation, the records of an honest reply, and what validates them."""
    data = write_data(tmp_path / "d.npz", train=64, test=40)
    config = tiny_config(data, tmp_path, max_update_norm=100.0, **request.param)
    federation = TinyFederation(config)
    run = federation.run
    reply = federation.local.train(2)
    rules = run.rules_for(2)
    turned = {n: a for n, a in reply.arrays.items() if n in rules.rotations}
    sent = run.context.method.wire.reply(
        {n: a for n, a in reply.arrays.items() if n not in turned},
        run.messages.received(),
        round_index=0,
        client=2,
    )
    records = {
        "arrays": {name: npy(array) for name, array in sent.items()},
        "rotations": {name: npy(array) for name, array in turned.items()},
    }
    metrics = {"num-examples": reply.num_examples, "partition-id": 2, "round": 0}

    def validated(arrays, rotations):
        return validate(
            rules,
            arrays=arrays,
            rotations=rotations,
            metrics=metrics,
            broadcast=run.broadcast,
            round_index=0,
            partition_id=2,
            read=lambda got: run.messages.read(got, 2),
        )

    return records, validated


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_an_honest_reply_is_accepted(exchange):
    records, validated = exchange
    assert validated(**records).num_examples == 8


def spoiled(generator, data):
    """Return another file: cut, longer, or with changed bytes."""
    kind = generator.integers(4)
    if kind == 0:
        return data[: generator.integers(len(data))]
    if kind == 1:
        return data + generator.bytes(generator.integers(1, 200))
    changed = bytearray(data)
    # Near the start, where headers and scales are, or anywhere.
    reach = min(len(data), 256) if kind == 2 else len(data)
    for place in generator.integers(0, reach, generator.integers(1, 9)):
        changed[place] = generator.integers(256)
    return bytes(changed)


def test_spoiled_replies_are_refused_or_harmless(exchange):
    """Whatever bytes come: a printable reason, or finite arrays near the broadcast."""
    records, validated = exchange
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(600):
        arrays = dict(records["arrays"])
        name = list(arrays)[generator.integers(len(arrays))]
        arrays[name] = spoiled(generator, arrays[name])
        reason = ""
        try:
            reply = validated(arrays, records["rotations"])
        except ReplyError as error:
            reason = str(error)
        if reason:
            refused += 1
            assert 5 < len(reason) <= 300
            assert reason.isprintable()
            continue
        assert reply.update_norm <= 100
        assert all(np.isfinite(array).all() for array in reply.arrays.values())
    assert refused > 300


def test_a_reply_without_or_with_other_arrays_is_refused(exchange):
    records, validated = exchange
    for arrays in ({}, {**records["arrays"], "more": npy(np.zeros(3))}):
        with pytest.raises(ReplyError, match="keys"):
            validated(arrays, records["rotations"])

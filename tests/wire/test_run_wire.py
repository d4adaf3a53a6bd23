"""Both directions: what clients read, and what the server makes of their change."""

import numpy as np
import pytest

from fedbnn_core.errors import WireError
from fedbnn_core.wire.run_wire import RunWire

WAYS = [(1, 8), (1, 4), (8, 8), (16, 16), (1, 32), (32, 8), (32, 32)]


def state(seed=0):
    generator = np.random.default_rng(seed)
    return {
        "conv.weight": generator.normal(size=(8, 4, 3, 3)).astype(np.float32),
        "bn.weight": generator.normal(size=8).astype(np.float32),
        "bn.count": np.array(seed, np.int64),
        "head.weight": generator.normal(size=(3, 8)).astype(np.float32),
    }


def run_wire(up, down, seed=1):
    return RunWire(state(), seed=seed, uplink_bits=up, downlink_bits=down)


def moved(received, seed=5):
    generator = np.random.default_rng(seed)
    return {
        name: (array + 0.1 * generator.normal(size=array.shape)).astype(array.dtype)
        for name, array in received.items()
    }


def test_32_bits_change_nothing():
    wire, arrays = run_wire(32, 32), state()
    trained = state(3)
    where = {"round_index": 0, "client": 0}
    assert wire.order(arrays, 0) is arrays
    assert wire.read_order(arrays, 0) is arrays
    assert wire.reply(trained, arrays, **where) is trained
    assert wire.read_reply(trained, state=arrays, received=arrays, **where) is trained
    assert (wire.order_arrays, wire.reply_arrays) == (None, None)


@pytest.mark.parametrize(("up", "down"), WAYS)
def test_the_server_puts_the_change_on_its_own_floats(up, down):
    """w + d^ with d measured against what the client read, not against w."""
    wire, arrays = run_wire(up, down), state()
    received = wire.read_order(wire.order(arrays, 2), 2)
    trained = moved(received)
    where = {"round_index": 2, "client": 4}
    sent = wire.reply(trained, received, **where)
    got = wire.read_reply(sent, state=arrays, received=received, **where)
    assert {n: a.dtype for n, a in got.items()} == {
        n: a.dtype for n, a in arrays.items()
    }
    np.testing.assert_array_equal(got["bn.count"], trained["bn.count"])
    np.testing.assert_array_equal(got["bn.weight"], trained["bn.weight"])
    if up == 1:
        # The change's projection on itself is exact, whatever the bits.
        change = (trained["conv.weight"] - received["conv.weight"]).astype(np.float64)
        found = got["conv.weight"].astype(np.float64) - arrays["conv.weight"]
        assert np.vdot(found, change) == pytest.approx(
            np.vdot(change, change), rel=1e-3
        )
    else:
        steps = {32: 1e-6, 16: 1e-4, 8: 4e-3}[up]
        for name in ("conv.weight", "head.weight"):
            change = trained[name] - received[name]
            np.testing.assert_allclose(
                got[name], arrays[name] + change, atol=steps, rtol=1e-5
            )


def test_a_client_that_learns_nothing_leaves_the_server_s_floats_alone():
    """The order's rounding is gone with it: it cannot add up over rounds."""
    wire, arrays = run_wire(1, 4), state()
    received = wire.read_order(wire.order(arrays, 0), 0)
    assert not np.array_equal(received["conv.weight"], arrays["conv.weight"])
    where = {"round_index": 0, "client": 0}
    sent = wire.reply(received, received, **where)
    got = wire.read_reply(sent, state=arrays, received=received, **where)
    for name, array in arrays.items():
        np.testing.assert_array_equal(got[name], array)


def test_clients_and_rounds_draw_independently():
    wire, arrays = run_wire(1, 8), state()
    trained = moved(arrays)
    sent = {
        (index, client): wire.reply(trained, arrays, round_index=index, client=client)[
            "message"
        ].tobytes()[28:]
        for index in (0, 1)
        for client in (0, 1)
    }
    assert len(set(sent.values())) == 4
    orders = {wire.order(arrays, k)["message"].tobytes()[28:] for k in range(3)}
    assert len(orders) == 3


@pytest.mark.parametrize(
    ("seed", "where", "reason"),
    [
        (2, {"round_index": 3, "client": 4}, "seed"),
        (1, {"round_index": 2, "client": 4}, "round 3, expected 2"),
        (1, {"round_index": 3, "client": 5}, "sender 4, expected 5"),
    ],
)
def test_a_reply_to_another_question_is_refused(seed, where, reason):
    arrays = state()
    sent = run_wire(1, 32).reply(moved(arrays), arrays, round_index=3, client=4)
    with pytest.raises(WireError, match=reason):
        run_wire(1, 32, seed).read_reply(sent, state=arrays, received=arrays, **where)


def test_an_order_of_another_round_is_refused():
    wire, arrays = run_wire(1, 8), state()
    with pytest.raises(WireError, match="round 1, expected 2"):
        wire.read_order(wire.order(arrays, 1), 2)

"""A state as bytes: budgets, round trip, and ten thousand spoiled messages refused."""

import math
import struct

import numpy as np
import pytest

from fedbnn_core.errors import WireError
from fedbnn_core.wire.bits import MESSAGE, BitCodec
from fedbnn_core.wire.codec import Stamp
from tests.methods.method_rounds import method

BITS = [16, 8, 4, 1]
STAMP = Stamp(seed=12345, round_index=7, sender=3)
STATE = {
    "conv.weight": np.linspace(-1, 1, 6 * 25, dtype=np.float32).reshape(6, 1, 5, 5),
    "conv.omega": np.array(0.5, np.float32),
    "bn.running_var": np.ones(6, np.float32),
    "bn.num_batches_tracked": np.array(40, np.int64),
    "head.weight": np.linspace(-3, 3, 33, dtype=np.float32).reshape(3, 11),
}


def message(bits, state=STATE, stamp=STAMP):
    return BitCodec(state, bits).encode(state, stamp)[MESSAGE]


@pytest.mark.parametrize("bits", BITS)
def test_a_state_comes_back(bits):
    codec = BitCodec(STATE, bits)
    sent = codec.encode(STATE, STAMP)
    assert sent[MESSAGE].shape == codec.sent[MESSAGE].shape
    assert sent[MESSAGE].nbytes == codec.size_bytes
    assert codec.rounded == {"conv.weight", "head.weight"}
    got = codec.decode(sent, STAMP)
    assert list(got) == list(STATE)
    for name, array in STATE.items():
        assert (got[name].shape, got[name].dtype) == (array.shape, array.dtype)
        if name not in codec.rounded:
            np.testing.assert_array_equal(got[name], array)
    np.testing.assert_allclose(got["head.weight"], STATE["head.weight"], atol=1e-4)
    if bits > 1:
        step = 1 / (2 ** (bits - 1) - 1)
        np.testing.assert_allclose(
            got["conv.weight"], STATE["conv.weight"], atol=1.01 * step
        )
    again = codec.decode(codec.encode(STATE, STAMP), STAMP)
    assert all(np.array_equal(got[name], again[name]) for name in STATE)


def test_another_seed_is_another_draw():
    other = Stamp(seed=12346, round_index=7, sender=3)
    assert not np.array_equal(message(1)[28:], message(1, stamp=other)[28:])


@pytest.mark.parametrize(
    ("model", "shape", "up", "down"),
    [("cnn4", (1, 28, 28), 1.3, 8.3), ("resnet18", (3, 32, 32), 1.15, 8.15)],
)
@pytest.mark.parametrize("name", ["fedbnn", "fedavg"])
def test_budgets_with_everything_included(name, model, shape, up, down):
    coded = method(name, shape, model=model, uplink_bits=1, downlink_bits=8)
    weights = coded.template.parameters
    # Convolutions, batch norms and head, counted by hand.
    if model == "cnn4":
        assert weights - 387_360 - 2_560 - 2 * 480 in (0, 9)
    assert 1 < 8 * coded.message_bytes.up / weights <= up
    assert 8 < 8 * coded.message_bytes.down / weights <= down
    if model == "cnn4":
        assert 10 * coded.message_bytes.up <= 0.7e6
        assert 10 * coded.message_bytes.down <= 4.2e6


def test_four_bits_halve_the_downlink():
    sizes = [method("fedbnn", downlink_bits=bits).message_bytes.down for bits in (4, 8)]
    assert sizes[0] < 0.55 * sizes[1]


# Where the parts of a message of one bit lie: 28 bytes of header, 150 values in blocks
# of 128 and 32 with 2 scales, omega, 6 variances, a counter, 3 scales of the head.
SCALES, SIGNS, OMEGA = 28, 36, 56
HEAD = OMEGA + 4 + 24 + 8
END = HEAD + 12 + 66


def test_the_places_of_the_parts():
    data = message(1).tobytes()
    assert len(data) == END
    assert struct.unpack_from("<f", data, OMEGA) == (0.5,)
    assert struct.unpack_from("<6fq", data, OMEGA + 4) == (*[1.0] * 6, 40)


def spoil_header(generator, data):
    # Every bit of it counts.
    position = generator.integers(28)
    data[position] ^= 1 << generator.integers(8)


def spoil_scale(generator, data):
    values = [math.nan, math.inf, -math.inf, -1e-3, -0.0, 2e30]
    offset = [SCALES, SCALES + 4, HEAD, HEAD + 8][generator.integers(4)]
    struct.pack_into("<f", data, offset, values[generator.integers(len(values))])


def spoil_number(generator, data):
    struct.pack_into("<h", data, HEAD + 12 + 2 * generator.integers(33), -32768)


def cut(generator, data):
    del data[generator.integers(len(data)) :]


def grow(generator, data):
    data += generator.bytes(generator.integers(1, 100))


def noise(generator, data):
    data[:] = generator.bytes(len(data))


@pytest.mark.parametrize(
    "spoil", [spoil_header, spoil_scale, spoil_number, cut, grow, noise]
)
def test_spoiled_messages_are_refused(spoil):
    codec, generator = BitCodec(STATE, 1), np.random.default_rng(1)
    good = message(1).tobytes()
    for _ in range(1000):
        data = bytearray(good)
        spoil(generator, data)
        with pytest.raises(WireError) as caught:
            codec.decode({MESSAGE: np.frombuffer(bytes(data), np.uint8)}, STAMP)
        assert 5 < len(str(caught.value)) < 200


@pytest.mark.parametrize("bits", BITS)
def test_whatever_bytes_come_decoding_ends_in_arrays_or_a_wire_error(bits):
    codec, generator = BitCodec(STATE, bits), np.random.default_rng(bits)
    good = message(bits)
    for _ in range(1000):
        data = good.copy()
        places = generator.integers(28, len(data), generator.integers(1, 20))
        data[places] = generator.integers(0, 256, len(places))
        try:
            got = codec.decode({MESSAGE: data}, STAMP)
        except WireError:
            continue
        assert {n: a.shape for n, a in got.items()} == {
            n: a.shape for n, a in STATE.items()
        }


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"other": np.zeros(END, np.uint8)},
        {MESSAGE: np.zeros(END, np.uint8), "more": np.zeros(1)},
        {MESSAGE: np.zeros(END, np.int8)},
        {MESSAGE: np.zeros((1, END), np.uint8)},
        {MESSAGE: np.broadcast_to(np.uint8(0), (10**15,))},
    ],
)
def test_other_arrays_are_refused_before_anything_is_allocated(sent):
    with pytest.raises(WireError, match="must"):
        BitCodec(STATE, 1).decode(sent, STAMP)


def test_a_state_of_other_shapes_has_another_layout():
    other = STATE | {"head.weight": STATE["head.weight"].reshape(11, 3)}
    codec = BitCodec(STATE | {"conv.omega": np.ones(1, np.float32)}, 1)
    with pytest.raises(WireError, match="layout"):
        codec.decode({MESSAGE: message(1)}, STAMP)
    with pytest.raises(WireError, match="must be uint8"):
        BitCodec(other, 1).decode({MESSAGE: message(1)}, STAMP)

"""FedBAT's coding: one bit per weight, read back as it was."""

import math

import numpy as np
import pytest

from fedbnn_core.errors import WireError
from fedbnn_core.wire.signs import STEP_SIZES, SignCodec, pack_signs, unpack_update


@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (3, 5, 3, 3), (10, 256)])
def test_packing_keeps_every_sign_in_one_bit(shape):
    generator = np.random.default_rng(0)
    positive = generator.random(shape) < 0.3
    packed = pack_signs(positive)
    assert packed.dtype == np.uint8
    assert packed.nbytes == math.ceil(math.prod(shape) / 8)
    alpha = np.float32(0.0123)
    restored = unpack_update(packed, alpha, shape)
    assert restored.dtype == np.float32
    for index in np.ndindex(shape):
        assert restored[index] == (alpha if positive[index] else -alpha)


def test_packed_bits_run_row_major_from_the_highest():
    positive = np.array([[True, False, True], [True, False, False], [True, True, True]])
    assert pack_signs(positive).tolist() == [0b10110011, 0b10000000]


def updates(generator):
    """Return a state in which two weights are updates of +-alpha."""
    signs = [generator.choice([-1.0, 1.0], shape) for shape in ((3, 3), (2, 4))]
    return {
        "a.weight": (0.01 * signs[0]).astype(np.float32),
        "bn.weight": generator.normal(size=3).astype(np.float32),
        "b.weight": (0.02 * signs[1]).astype(np.float32),
    }


def test_a_reply_comes_back():
    state = updates(np.random.default_rng(0))
    codec = SignCodec(state, ["a.weight", "b.weight"])
    sent = codec.encode(state)
    described = {name: (array.shape, array.dtype) for name, array in sent.items()}
    assert described == {n: (a.shape, a.dtype) for n, a in codec.sent.items()}
    assert codec.size_bytes == 12 + 2 + 1 + 8
    np.testing.assert_array_equal(sent[STEP_SIZES], np.array([0.01, 0.02], "f4"))
    got = codec.decode(sent)
    assert got.keys() == state.keys()
    for name, array in state.items():
        np.testing.assert_array_equal(got[name], array)


def test_padding_must_be_zero():
    state = updates(np.random.default_rng(1))
    codec = SignCodec(state, ["a.weight", "b.weight"])
    sent = codec.encode(state)
    codec.check(sent)
    for bit in range(7):
        spoiled = sent["a.weight.signs"].copy()
        spoiled[-1] |= 1 << bit
        with pytest.raises(WireError, match=r"a\.weight\.signs.* padding bits"):
            codec.decode(sent | {"a.weight.signs": spoiled})

"""FedMUD's coding: names for the factors, nothing changed."""

import numpy as np

from fedbnn_core.training.kronecker_update import Blocks
from fedbnn_core.wire.factors import FactorCodec, factor_keys

STATE = {
    "first.weight": np.ones((2, 3), np.float32),
    "mid.weight": np.zeros((4, 8), np.float32),
    "mid.bias": np.ones(4, np.float32),
}


def test_a_reply_comes_back():
    codec = FactorCodec(STATE, {"mid": Blocks(2, 2)})
    assert list(codec.sent) == ["first.weight", "mid.bias", *factor_keys("mid")]
    factors = np.arange(16, dtype=np.float32).reshape(2, 2, 2, 2)
    sent = codec.encode(STATE | {"mid.weight": factors})
    described = {name: (array.shape, array.dtype) for name, array in sent.items()}
    assert described == {n: (a.shape, a.dtype) for n, a in codec.sent.items()}
    assert codec.size_bytes == 4 * (6 + 4 + 16)
    a, b = factor_keys("mid")
    np.testing.assert_array_equal(sent[a], factors[0])
    np.testing.assert_array_equal(sent[b], factors[1])
    got = codec.decode(sent)
    assert got.keys() == STATE.keys()
    np.testing.assert_array_equal(got["mid.weight"], factors)

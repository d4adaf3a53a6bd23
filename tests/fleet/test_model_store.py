"""The device's store of packed models."""

import hashlib

import numpy as np
import pytest

from fedbnn_core.errors import FormatError
from fedbnn_core.fleet.model_store import store_model
from fedbnn_core.packed.encode import encode
from tests.packed.graphs import everything


def packed(seed):
    return encode(everything(8, np.random.default_rng(seed)))


def store(folder, content, digest=None):
    digest = digest or hashlib.sha256(content).hexdigest()
    return store_model(folder, content, digest, {"run": "r1"})


def test_the_new_model_is_stored_beside_the_previous_one(tmp_path):
    first, second, third = (packed(seed) for seed in (1, 2, 3))
    path = store(tmp_path, first)
    assert path.read_bytes() == first
    store(tmp_path, second)
    store(tmp_path, third)
    assert path.read_bytes() == third
    assert (tmp_path / "previous.fbnn").read_bytes() == second
    assert '"run": "r1"' in (tmp_path / "model.json").read_text()


def test_the_same_model_again_keeps_the_previous_one(tmp_path):
    first, second = packed(1), packed(2)
    for content in (first, second, second):
        store(tmp_path, content)
    assert (tmp_path / "previous.fbnn").read_bytes() == first


def test_one_flipped_bit_is_refused_and_the_old_model_stays(tmp_path):
    good = packed(1)
    path = store(tmp_path, good)
    bad = bytearray(packed(2))
    digest = hashlib.sha256(bad).hexdigest()
    bad[len(bad) // 2] ^= 1
    with pytest.raises(FormatError, match="damaged"):
        store(tmp_path, bytes(bad), digest)
    assert path.read_bytes() == good
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.fbnn", "model.json"]


def test_a_file_that_is_no_model_is_refused_though_its_checksum_fits(tmp_path):
    with pytest.raises(FormatError):
        store(tmp_path, b"#!/bin/sh\n")
    assert list(tmp_path.iterdir()) == []

"""A run's state: its hash; that it survives a checkpoint is test_run's."""

import numpy as np

from fedbnn_core.server.state import state_hash


def test_hash_depends_on_names_shapes_and_values():
    base = {"a": np.zeros(4, np.float32)}
    others = [
        {"b": np.zeros(4, np.float32)},
        {"a": np.zeros((2, 2), np.float32)},
        {"a": np.zeros(4, np.int32)},
        {"a": np.array([0, 0, 0, -0.0], np.float32)},
    ]
    assert len({state_hash(state) for state in (base, *others)}) == 5
    assert state_hash(base) == state_hash({"a": np.zeros(8, np.float32)[::2]})

"""Clipping of replies, worked by hand."""

import numpy as np
import pytest

from fedbnn_core.server.reply import Reply, clip_replies


def test_clipping_clips_long_updates_only():
    broadcast = {"w": np.ones(3, np.float32), "n": np.array(5)}
    short = np.array([1.0, 1.0, 4.0], np.float32)  # an update of length 3
    long = np.array([1.0, 31.0, 41.0], np.float32)  # an update of length 50
    replies = [
        Reply(k, 1, {"w": w, "n": np.array(9), "r1": w}, update_norm=norm)
        for k, (w, norm) in enumerate([(short, 3.0), (long, 50.0)])
    ]
    clipped = clip_replies(replies, broadcast, max_norm=5.0)
    np.testing.assert_array_equal(clipped[0].array("w"), short)
    np.testing.assert_allclose(clipped[1].array("w"), [1.0, 4.0, 5.0], rtol=1e-6)
    # Neither integers nor rotations are updates.
    assert int(clipped[1].array("n")) == 9
    np.testing.assert_array_equal(clipped[1].array("r1"), long)


def test_clipping_defaults_to_the_median_norm():
    broadcast = {"w": np.zeros(1, np.float32)}
    replies = [
        Reply(k, 1, {"w": np.array([n], np.float32)}, update_norm=n)
        for k, n in enumerate((1.0, 2.0, 90.0))
    ]
    clipped = clip_replies(replies, broadcast, max_norm=0.0)
    lengths = [float(reply.array("w")[0]) for reply in clipped]
    assert lengths == pytest.approx([1.0, 2.0, 2.0])

"""The mean of rotated weights, filter by filter in float64."""

import numpy as np
import pytest
import torch

from fedbnn_core.aggregation.rotated_mean import filter_blocks, rotated_mean
from fedbnn_core.aggregation.threads import map_in_threads
from fedbnn_core.binary.rotation import factor_pair


def draw(shape, count, seed=0):
    """Return weights, rotations and shares of some clients, the weights read-only."""
    generator = np.random.default_rng(seed)
    clients, rotations = [], []
    for _ in range(count):
        weights = generator.normal(0.3, 2.0, size=shape).astype(np.float32)
        weights.flags.writeable = False
        clients.append(weights)
        rotations.append(
            tuple(
                torch.from_numpy(np.linalg.qr(generator.normal(size=(n, n)))[0]).float()
                for n in factor_pair(int(np.prod(shape[1:])))
            )
        )
    shares = generator.random(count)
    return clients, rotations, list(shares / shares.sum())


def expected(clients, rotations, shares):
    total = np.zeros(clients[0].shape)
    for w, pair, share in zip(clients, rotations, shares, strict=True):
        r1, r2 = (r.double().numpy() for r in pair)
        for f, weights in enumerate(w):
            x = weights.astype(np.float64).reshape(-1)
            if x.size > 1:
                x = (x - x.mean()) / (x.std(ddof=1) + 1e-5)
            turned = r1.T @ x.reshape(len(r1), len(r2)) @ r2
            total[f] += share * turned.reshape(weights.shape)
    return total


@pytest.mark.parametrize(
    "shape",
    [
        (6, 4, 3, 3),
        (5, 1, 7, 7),
        (4, 13),  # a prime: R1 is 1 x 1
        (3, 1),  # a single weight has no deviation
        (301, 96, 3, 3),  # two blocks, the second one smaller
    ],
)
def test_is_the_weighted_sum_of_rotated_filters(shape):
    parts = draw(shape, 3)
    got = rotated_mean(*parts)
    assert (got.dtype, got.shape) == (np.float32, shape)
    np.testing.assert_allclose(got, expected(*parts), atol=5e-6)


def test_blocks_cover_all_filters_once():
    weights = np.empty((301, 96, 3, 3), np.float32)
    covered = [i for block in filter_blocks(weights) for i in range(301)[block]]
    assert len(filter_blocks(weights)) > 1
    assert covered == list(range(301))


def test_bits_do_not_depend_on_what_runs_beside_it():
    parts = draw((130, 64, 3, 3), 4)
    alone = map_in_threads(lambda _: rotated_mean(*parts), range(1))[0]
    for result in map_in_threads(lambda _: rotated_mean(*parts), range(8)):
        assert np.array_equal(alone, result)

"""At few bits clients send no R: the server learns it from their weights."""

import numpy as np
import pytest

from tests.methods.method_rounds import Reply, method, one_round, task


@pytest.mark.parametrize("start", ["identity", "haar", "warm"])
@pytest.mark.parametrize("alignment", [True, False])
@pytest.mark.parametrize("aggregation", ["server", "client"])
def test_the_server_learns_what_a_client_would(start, alignment, aggregation):
    """R from the weights alone: as `relearn_rotations` does with a whole network."""
    settings = {
        "rotation_start": start,
        "server_alignment": alignment,
        "aggregation": aggregation,
        "local_epochs": 2,
    }
    coded = method("fedbnn", uplink_bits=1, **settings)
    plain = method("fedbnn", **settings)
    broadcast = coded.template.broadcast
    (reply,) = one_round(coded, broadcast, clients=1)
    assert set(reply.arrays) == set(broadcast)
    assert coded.template.rotations == {}
    rotations = plain.relearn_rotations(
        plain.new_model(), broadcast, reply.arrays, task(epochs=2)
    )
    turned = Reply(reply.num_examples, reply.arrays | rotations)
    got = coded.aggregate([reply], broadcast).candidates
    wanted = plain.aggregate([turned], broadcast).candidates
    for name in ("mixed", "rotated", "weights"):
        for key, array in wanted[name].items():
            np.testing.assert_allclose(got[name][key], array, rtol=1e-3, atol=1e-4)


def test_weights_that_overflow_do_not_stop_the_server():
    coded = method("fedbnn", uplink_bits=1)
    broadcast = coded.template.broadcast
    (reply,) = one_round(coded, broadcast, clients=1)
    name = "convs.1.weight"
    huge = np.full_like(broadcast[name], 3e38)
    huge[0, 0, 0, 0] = -3e38
    reply.arrays[name] = huge
    rotated = coded.aggregate([reply], broadcast).candidates["rotated"]
    assert rotated[name].shape == huge.shape

"""FedBAT's round: what travels, what the server adds, when the signs begin."""

import io

import numpy as np
import pytest

from fedbnn_core.errors import ReplyError
from fedbnn_core.networks.state import load_arrays, state_arrays
from fedbnn_core.server.validation import ReplyRules, validate_arrays
from fedbnn_core.training.sign_update import BinaryUpdate
from fedbnn_core.training.weight_update import attached_updates
from tests.methods.method_rounds import Reply, client_data, method, one_round, task

# FMNIST CNN4: conv weights, head, BN channels.
WEIGHTS, NORM_CHANNELS, LAYERS = 387_360 + 2_560, 32 + 64 + 128 + 256, 5


def decoded(reply, broadcast, name, index):
    """w + alpha (2b - 1), bit by bit."""
    packed = reply.array(f"{name}.signs")
    alpha = reply.array("step-sizes")[index]
    flat = broadcast[name].astype(np.float64).ravel()
    bits = [(packed[i // 8] >> (7 - i % 8)) & 1 for i in range(flat.size)]
    return (flat + alpha * (2.0 * np.array(bits) - 1)).reshape(broadcast[name].shape)


def npy_bytes(array):
    file = io.BytesIO()
    np.save(file, array)
    return len(file.getvalue())


def test_upload_is_one_bit_per_weight():
    fedbat = method("fedbat")
    (reply,) = one_round(fedbat, fedbat.template.broadcast, clients=1)
    sizes = {name: array.nbytes for name, array in reply.arrays.items()}
    norms = 4 * 4 * NORM_CHANNELS + 4 * 8
    assert sum(sizes.values()) == WEIGHTS // 8 + 4 * LAYERS + norms
    # What travels are npy files, each with its header.
    files = {name: npy_bytes(array) for name, array in reply.arrays.items()}
    assert all(files[name] > sizes[name] for name in sizes)
    assert 8 * (sum(files.values()) - norms) <= 1.15 * WEIGHTS
    nominal = fedbat.template.nominal_bytes
    trained = WEIGHTS + 2 * NORM_CHANNELS
    # 1.08 bits per parameter, without running statistics.
    assert nominal.up == WEIGHTS // 8 + 4 * LAYERS + 8 * NORM_CHANNELS
    assert 8 * nominal.up / trained == pytest.approx(1.08, abs=0.005)
    assert nominal.down == 4 * trained


def test_server_averages_the_reconstructed_weights():
    fedbat = method("fedbat")
    broadcast = fedbat.template.broadcast
    replies = one_round(fedbat, broadcast, clients=3)
    result = fedbat.aggregate(replies, broadcast)
    assert result.broadcast.keys() == broadcast.keys()
    layers = [f"convs.{i}.weight" for i in range(4)] + ["head.weight"]
    for index in (0, 1, 4):
        name = layers[index]
        expected = np.average(
            [decoded(reply, broadcast, name, index) for reply in replies],
            axis=0,
            weights=[40, 50, 60],
        )
        np.testing.assert_allclose(result.broadcast[name], expected, atol=1e-7)
    means = [reply.array("norms.2.running_mean") for reply in replies]
    np.testing.assert_allclose(
        result.broadcast["norms.2.running_mean"],
        np.average(means, axis=0, weights=[40, 50, 60]),
        rtol=1e-6,
    )


def judged(fedbat, broadcast, arrays):
    """Validate a reply as the server does."""
    rules = ReplyRules(arrays, {}, measure_update=fedbat.update_norm)
    return validate_arrays(rules, arrays, {}, 40, broadcast)


def test_update_norm_is_that_of_the_decoded_weights():
    fedbat = method("fedbat")
    broadcast = fedbat.template.broadcast
    (reply,) = one_round(fedbat, broadcast, clients=1)
    layers = [f"convs.{i}.weight" for i in range(4)] + ["head.weight"]
    squares = 0.0
    for name, before in broadcast.items():
        if name in layers:
            after = decoded(reply, broadcast, name, layers.index(name))
        elif before.dtype.kind == "f":
            after = reply.array(name)
        else:
            continue
        squares += float(np.square(after.astype(np.float64) - before).sum())
    norm = judged(fedbat, broadcast, reply.arrays)
    assert norm == pytest.approx(squares**0.5, rel=1e-5)


@pytest.mark.parametrize("alpha", [-1000.0, 0.0, 4.9e-4, 5.1e-2])
def test_step_size_that_no_client_can_have_is_refused(alpha):
    fedbat = method("fedbat")
    broadcast = fedbat.template.broadcast
    (reply,) = one_round(fedbat, broadcast, clients=1)
    for bound in (5e-4, 5e-2):
        reply.arrays["step-sizes"] = np.full(LAYERS, bound, np.float32)
        assert judged(fedbat, broadcast, reply.arrays) > 0
    reply.arrays["step-sizes"][2] = alpha
    with pytest.raises(ReplyError, match=r"between 0\.0005 and 0\.05"):
        judged(fedbat, broadcast, reply.arrays)


def test_server_model_is_float_and_draws_nothing():
    fedbat = method("fedbat")
    model = fedbat.evaluation_model()
    assert attached_updates(model, BinaryUpdate) == {}
    load_arrays(model, fedbat.template.broadcast)
    assert state_arrays(model).keys() == fedbat.template.broadcast.keys()


@pytest.mark.parametrize(
    ("warm_up", "switch_after"), [(0.0, 0), (0.5, 3), (0.6, 3), (1.0, 6)]
)
def test_signs_begin_after_the_share_of_steps(warm_up, switch_after):
    """48 samples in batches of 16, two epochs: 6 steps; signs while step > phi*6."""
    fedbat = method("fedbat", fedbat_warm_up=warm_up)
    model = fedbat.new_model()
    modes = []
    model.register_forward_pre_hook(
        lambda module, _: modes.append(
            {u.signs_on for u in attached_updates(module, BinaryUpdate).values()}
        )
    )
    update = fedbat.train(
        model, fedbat.template.broadcast, client_data(0, 48), task(epochs=2)
    )
    assert modes == [{False}] * switch_after + [{True}] * (6 - switch_after)
    # A step size is sent in any case; a round without signs sends mean |m|.
    assert (update.arrays["step-sizes"] >= np.float32(5e-4)).all()


def test_a_round_starts_from_the_broadcast_and_nothing_else():
    """A model that another client has used gives the same reply as a new one."""
    fedbat = method("fedbat")
    broadcast = fedbat.template.broadcast
    used = fedbat.new_model()
    fedbat.train(used, broadcast, client_data(200, 260), task(9))
    replies = [
        fedbat.train(model, broadcast, client_data(0, 40), task(3)).arrays
        for model in (used, fedbat.new_model())
    ]
    for name in replies[0]:
        assert np.array_equal(replies[0][name], replies[1][name]), name


def test_clients_draw_their_own_signs():
    fedbat = method("fedbat")
    model, broadcast = fedbat.new_model(), fedbat.template.broadcast
    data = client_data(0, 40)
    # lr = 0 keeps m = 0 everywhere: every bit is then a fair coin.
    bits = [
        np.unpackbits(
            fedbat.train(model, broadcast, data, task(k, lr=0.0)).arrays[
                "convs.3.weight.signs"
            ]
        )
        for k in range(2)
    ]
    share = (bits[0] == bits[1]).mean()
    assert share == pytest.approx(0.5, abs=0.01)


def test_biases_travel_as_they_are():
    fedbat = method("fedbat", shape=(3, 16, 16), model="resnet10", model_width=4)
    state = fedbat.template.broadcast
    untrained = fedbat.train(
        fedbat.new_model(), state, client_data(0, 4), task(epochs=0)
    ).arrays
    assert untrained["head.bias"].dtype == np.float32
    assert "head.bias.signs" not in untrained
    untrained["head.bias"][:] = 0.25
    combined = fedbat.aggregate([Reply(5, untrained)], state).broadcast
    assert combined["head.bias"].tolist() == [0.25] * 10
    shortcut = combined["blocks.1.shortcut.0.weight"]
    moved = np.abs(shortcut - state["blocks.1.shortcut.0.weight"])
    # Nothing was trained, so the step size is the smallest one.
    np.testing.assert_allclose(moved, 5e-4, rtol=1e-3)

"""FedMUD's round: small uploads, an honest downlink, exact averaging."""

import numpy as np
import torch

from fedbnn_core.networks.state import load_arrays
from fedbnn_core.training.kronecker_update import KroneckerUpdate
from fedbnn_core.training.weight_update import attached_updates
from tests.methods.method_rounds import client_data, method, one_round, task

CLOCK = "fedmud-clock"
DECOMPOSED = [f"convs.{i}.weight" for i in (1, 2, 3)]


def client_weights(fedmud, broadcast, reply):
    """Load a reply into the client's own network; return its effective weights."""
    model = fedmud.new_model()
    # Training for zero epochs sets frozen weights and factors of this round.
    fedmud.train(model, broadcast, client_data(0, 4), task(epochs=0))
    with torch.no_grad():
        for name, update in attached_updates(model, KroneckerUpdate).items():
            update.a.copy_(torch.from_numpy(reply.array(f"{name}.factor-a")))
            update.b.copy_(torch.from_numpy(reply.array(f"{name}.factor-b")))
        return {
            f"convs.{i}.weight": model.convs[i].weight.numpy().copy() for i in (1, 2, 3)
        }


def test_traffic_counts_of_the_published_run():
    """12,008 numbers each way for CNN4 on Fashion-MNIST."""
    fedmud = method("fedmud")
    nominal = fedmud.template.nominal_bytes
    assert nominal.up == 4 * 12_008
    assert nominal.down == 4 * 12_008 + 8
    sent = fedmud.template.reply
    assert fedmud.template.rotations == {}
    statistics = 2 * (32 + 64 + 128 + 256)
    assert sum(a.size for a in sent.values()) == 12_008 + statistics + 4
    # A client keeps nothing, so W0 travels: all 390,880 parameters.
    down = fedmud.template.broadcast
    assert sum(a.size for a in down.values()) == 390_880 + statistics + 4 + 2


def test_round_starts_with_a_zero_update():
    fedmud = method("fedmud")
    broadcast = fedmud.template.broadcast
    model = fedmud.new_model()
    fedmud.train(model, broadcast, client_data(0, 40), task(lr=0.01))
    assert not np.array_equal(
        model.convs[1].weight.detach().numpy(), broadcast["convs.1.weight"]
    )
    fedmud.train(model, broadcast, client_data(0, 4), task(epochs=0))
    for i in range(4):
        weight = model.convs[i].weight.detach().numpy()
        assert np.array_equal(weight, broadcast[f"convs.{i}.weight"])


def test_merged_model_is_the_mean_of_the_clients_models():
    fedmud = method("fedmud")
    broadcast = fedmud.template.broadcast
    replies = one_round(fedmud, broadcast, clients=3, lr=0.01)
    result = fedmud.aggregate(replies, broadcast)
    merged = result.candidates["float"]
    assert CLOCK not in merged
    load_arrays(fedmud.evaluation_model(), merged)
    weights = [client_weights(fedmud, broadcast, reply) for reply in replies]
    for name in weights[0]:
        mean = np.average([w[name] for w in weights], axis=0, weights=[40, 50, 60])
        assert np.abs(merged[name] - mean).max() <= 1e-6
        assert np.abs(merged[name] - broadcast[name]).max() > 1e-4
    # First and last layer and norms are averaged in full.
    for name in ("convs.0.weight", "head.weight", "norms.1.weight"):
        mean = np.average(
            [reply.array(name) for reply in replies], axis=0, weights=[40, 50, 60]
        )
        np.testing.assert_allclose(merged[name], mean, atol=1e-7)


def test_every_round_merges_and_takes_a_new_seed():
    fedmud = method("fedmud")
    broadcast = fedmud.template.broadcast
    result = fedmud.aggregate(one_round(fedmud, broadcast, lr=0.01), broadcast)
    assert result.broadcast.keys() == broadcast.keys()
    for name, array in result.candidates["float"].items():
        assert np.array_equal(result.broadcast[name], array)
    assert result.broadcast[CLOCK][1] == 1
    assert result.broadcast[CLOCK][0] != broadcast[CLOCK][0]


def test_a_later_reset_keeps_w0_and_sends_the_factors_down():
    fedmud = method("fedmud", fedmud_reset_every=2)
    first = fedmud.template.broadcast
    replies = one_round(fedmud, first, lr=0.01)
    result = fedmud.aggregate(replies, first)
    second = result.broadcast
    assert second[CLOCK].tolist() == [first[CLOCK][0], 1]
    assert np.array_equal(second["convs.1.weight"], first["convs.1.weight"])
    mean = np.average(
        [reply.array("convs.1.factor-a") for reply in replies],
        axis=0,
        weights=[40, 50],
    )
    np.testing.assert_allclose(second["convs.1.factor-a"], mean, atol=1e-9)

    # The next client starts where the evaluated model is.
    model = fedmud.new_model()
    fedmud.train(model, second, client_data(0, 4), task(epochs=0))
    np.testing.assert_allclose(
        model.convs[1].weight.detach().numpy(),
        result.candidates["float"]["convs.1.weight"],
        atol=1e-6,
    )
    third = fedmud.aggregate(one_round(fedmud, second, lr=0.01), second).broadcast
    assert third.keys() == first.keys()
    assert third[CLOCK][1] == 2
    assert third[CLOCK][0] != first[CLOCK][0]


def test_residual_networks_are_decomposed_shortcuts_too():
    fedmud = method("fedmud", shape=(3, 32, 32), model="resnet10", model_width=8)
    names = set(attached_updates(fedmud.new_model(), KroneckerUpdate))
    state = fedmud.template.broadcast
    convolutions = {name for name, array in state.items() if array.ndim == 4}
    assert {f"{name}.weight" for name in names} == convolutions - {"stem.weight"}


def test_update_norm_is_that_of_the_effective_weights():
    """Both with factors that start at zero and with those of an earlier round."""
    fedmud = method("fedmud", fedmud_reset_every=2)
    broadcast = fedmud.template.broadcast
    start = {name: broadcast[name] for name in DECOMPOSED}
    for round_index in range(2):
        replies = one_round(fedmud, broadcast, round_index=round_index, lr=0.01)
        after = client_weights(fedmud, broadcast, replies[0])
        squares = sum(np.square(after[n] - start[n]).sum() for n in after)
        for name, array in replies[0].arrays.items():
            if name in broadcast and "factor" not in name and array.dtype.kind == "f":
                squares += np.square(array - broadcast[name]).sum()
        norm = fedmud.update_norm(replies[0].arrays, broadcast)
        assert abs(norm - squares**0.5) <= 1e-4 * norm
        result = fedmud.aggregate(replies, broadcast)
        broadcast, merged = result.broadcast, result.candidates["float"]
        start = {name: merged[name] for name in start}

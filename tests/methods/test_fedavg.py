"""FedAvg against closed forms and plain SGD."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedbnn_core.networks import build_model
from fedbnn_core.networks.state import state_arrays
from fedbnn_core.seeding import derive_seed
from fedbnn_core.training.local import prefer_channels_last
from tests.methods.method_rounds import Reply, client_data, method, one_round, task


def test_quadratic_clients_reach_the_closed_form():
    """f_k(w) = |w - c_k|^2 / 2 and E local steps of gradient descent.

    w_t = w* + (1 - eta)^(E t) (w_0 - w*) with w* = sum_k p_k c_k.
    """
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(4, 6)).astype(np.float32)
    counts, eta, steps, rounds = [3, 11, 5, 1], 0.05, 4, 6
    start = generator.normal(size=6).astype(np.float32)
    fedavg, broadcast = method("fedavg"), {"w": start}
    for _ in range(rounds):
        replies = []
        for centre, count in zip(centres, counts, strict=True):
            w = broadcast["w"].copy()
            for _ in range(steps):
                w -= np.float32(eta) * (w - centre)
            replies.append(Reply(count, {"w": w}))
        broadcast = fedavg.aggregate(replies, broadcast).broadcast
    optimum = np.average(centres.astype(np.float64), axis=0, weights=counts)
    expected = optimum + (1 - eta) ** (steps * rounds) * (start - optimum)
    np.testing.assert_allclose(broadcast["w"], expected, atol=2e-6)


def test_one_full_batch_step_is_a_step_on_the_pooled_data():
    """Softmax regression, one step per client: the mean is centralized descent.

    The gradient (softmax - one-hot) x^T is written out over all samples at once.
    """
    fedavg = method("fedavg")
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.zero_()
    broadcast = state_arrays(model)
    sizes = ((0, 30), (30, 90), (90, 100))
    replies, images, labels = [], [], []
    for k, (start, stop) in enumerate(sizes):
        data = client_data(start, stop)
        update = fedavg.train(model, broadcast, data, task(k, batch_size=100))
        replies.append(Reply(len(data), update.arrays))
        for x, y in data.epoch(100, seed=0):
            images.append(x.flatten(1).double())
            labels.append(y)
    x, y = torch.cat(images), torch.cat(labels)
    residual = torch.full((len(y), 10), 0.1, dtype=torch.float64)
    residual[torch.arange(len(y)), y] -= 1.0
    expected = -0.1 * residual.T @ x / len(y)
    combined = fedavg.aggregate(replies, broadcast).broadcast
    np.testing.assert_allclose(combined["1.weight"], expected, atol=1e-6)


def test_one_client_and_one_epoch_are_plain_sgd_bit_for_bit():
    fedavg, data = method("fedavg"), client_data(0, 50)
    broadcast = fedavg.template.broadcast
    update = fedavg.train(fedavg.new_model(), broadcast, data, task(7))
    combined = fedavg.aggregate([Reply(50, update.arrays)], broadcast).broadcast

    seed = derive_seed(fedavg.config.seed, "initial weights")
    model = prefer_channels_last(build_model(fedavg.spec, seed=seed))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in data.epoch(16, derive_seed(1, "batches", 0, 7, 0)):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        assert np.array_equal(combined[name], value.numpy()), name


def test_every_array_is_averaged_by_samples_running_statistics_too():
    fedavg = method("fedavg")
    broadcast = fedavg.template.broadcast
    replies = one_round(fedavg, broadcast)
    combined = fedavg.aggregate(replies, broadcast)
    assert combined.candidates["float"].keys() == broadcast.keys()
    for name in broadcast:
        stacked = np.stack([reply.array(name).astype(np.float64) for reply in replies])
        mean = np.average(stacked, axis=0, weights=[40, 50])
        if broadcast[name].dtype.kind == "i":
            mean = np.rint(mean)
        np.testing.assert_allclose(combined.broadcast[name], mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["fedavg", "fedbat", "fedmud"])
def test_float_methods_are_scored_binarized_too(name):
    tested = method(name)
    model = tested.evaluation_model()
    variants = tested.final_variants(model)
    assert list(variants) == ["ptb", "ptb_l1"]
    weights = model.convs[1].weight.detach().numpy()
    scales = {
        "ptb": np.sqrt((weights.astype(np.float64) ** 2).mean()),
        "ptb_l1": np.abs(weights).mean(),
    }
    for variant, scale in scales.items():
        magnitudes = variants[variant].convs[1].weight.detach().abs().numpy()
        np.testing.assert_allclose(magnitudes, scale, rtol=1e-5)


def test_fedbnn_is_binary_already():
    fedbnn = method("fedbnn")
    assert fedbnn.final_variants(fedbnn.evaluation_model()) == {}

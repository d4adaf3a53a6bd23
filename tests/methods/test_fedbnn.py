"""FedBNN's client round and server combination against formulas in float64."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from fedbnn_core.config import RunConfig
from fedbnn_core.data import load_dataset
from fedbnn_core.data.batches import ClientData
from fedbnn_core.methods import create_method, method_names
from fedbnn_core.training.local import LocalTask

SHAPE, CLASSES = (1, 28, 28), 10


def method(**overrides):
    named = {key.replace("_", "-"): value for key, value in overrides.items()}
    network = {"model": "cnn4", "float-first": False}
    config = RunConfig.from_mapping(network | named, complete=False)
    return create_method(config, SHAPE, CLASSES)


@dataclass
class Reply:
    num_examples: int
    arrays: dict

    def array(self, name):
        return self.arrays[name]


def random_orthogonal(size, generator):
    q, _ = np.linalg.qr(generator.normal(size=(size, size)))
    return q.astype(np.float32)


def random_replies(fedbnn, count, seed=0):
    """Replies with random weights, scalars and rotations of the right shapes."""
    generator = np.random.default_rng(seed)
    state, rotations = fedbnn.template.reply, fedbnn.template.rotations
    replies = []
    for k in range(count):
        arrays = {
            name: np.asarray(generator.normal(size=a.shape), a.dtype)
            if a.dtype.kind == "f"
            else np.full(a.shape, 10 * k, a.dtype)
            for name, a in state.items()
        }
        arrays |= {
            n: random_orthogonal(len(a), generator) for n, a in rotations.items()
        }
        replies.append(Reply(7 + 5 * k, arrays))
    return replies


def std(w):
    flat = w.astype(np.float64).reshape(len(w), -1)
    centred = flat - flat.mean(axis=1, keepdims=True)
    return (centred / (flat.std(axis=1, ddof=1, keepdims=True) + 1e-5)).reshape(w.shape)


def rot(z, r1, r2):
    rows = [r1.T.astype(float) @ f.reshape(len(r1), len(r2)) @ r2 for f in z]
    return np.stack(rows).reshape(z.shape)


def combined(replies, value):
    total = sum(reply.num_examples for reply in replies)
    return sum(reply.num_examples / total * value(reply) for reply in replies)


def test_server_keeps_two_models():
    fedbnn = method()
    replies = random_replies(fedbnn, 3)
    broadcast = fedbnn.template.broadcast
    result = fedbnn.aggregate(replies, broadcast)
    assert list(result.candidates) == ["mixed", "weights", "rotated"]
    for layer in range(4):
        name = f"convs.{layer}"
        key = f"{name}.weight"
        w_next = combined(replies, lambda r, key=key: r.array(key).astype(float))
        np.testing.assert_allclose(result.broadcast[key], w_next, atol=1e-6)
        w_rotated = combined(
            replies,
            lambda r, n=name: rot(
                std(r.array(f"{n}.weight")), r.array(f"{n}.r1"), r.array(f"{n}.r2")
            ),
        )
        np.testing.assert_allclose(
            result.candidates["rotated"][key], w_rotated, atol=1e-4
        )
        theta, gamma = (
            float(combined(replies, lambda r, s=s, n=name: float(r.array(f"{n}.{s}"))))
            for s in ("theta", "gamma")
        )
        alpha, beta = abs(math.sin(theta)), abs(math.sin(gamma))
        z, z_before = std(w_next), std(broadcast[key])
        w_mixed = (
            z + alpha * beta * (w_rotated - z) + alpha * (1 - beta) * (z_before - z)
        )
        np.testing.assert_allclose(result.candidates["mixed"][key], w_mixed, atol=1e-4)
        np.testing.assert_allclose(result.candidates["weights"][key], z, atol=1e-4)
        assert result.layers[name]["alpha"] == pytest.approx(alpha, abs=1e-6)
        assert result.layers[name]["beta"] == pytest.approx(beta, abs=1e-6)


def test_the_served_model_is_an_average_over_rounds():
    each, averaged = method(), method(served_average=0.75)
    broadcast = each.template.broadcast
    expected = None
    for seed in range(3):
        replies = random_replies(each, 2, seed)
        now = each.aggregate(replies, broadcast).candidates["mixed"]
        served = averaged.aggregate(replies, broadcast)
        if expected is None:
            expected = {n: a.astype(float) for n, a in now.items()}
        expected = {n: 0.75 * expected[n] + 0.25 * a for n, a in now.items()}
    for name, array in served.candidates["mixed"].items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(array, expected[name], atol=1e-5)
        else:
            np.testing.assert_array_equal(array, now[name])
    other = method(served_average=0.75)
    other.load_server_state(averaged.server_state())
    replies = random_replies(each, 2, 9)
    went_on, resumed = (
        m.aggregate(replies, broadcast).candidates["mixed"] for m in (averaged, other)
    )
    for name, array in went_on.items():
        np.testing.assert_array_equal(array, resumed[name])


def test_rotations_are_used_only_when_there_is_something_to_evaluate():
    fedbnn = method()
    asked = set()

    class Watched(Reply):
        def array(self, name):
            asked.add(name.rsplit(".", 1)[-1])
            return super().array(name)

    replies = [Watched(r.num_examples, r.arrays) for r in random_replies(fedbnn, 2)]
    result = fedbnn.aggregate(replies, fedbnn.template.broadcast)
    assert "weight" in asked
    assert not {"r1", "r2"} & asked
    assert result.candidates["mixed"]
    assert {"r1", "r2"} <= asked


def test_everything_but_the_rotations_is_averaged():
    fedbnn = method()
    replies = random_replies(fedbnn, 3)
    result = fedbnn.aggregate(replies, fedbnn.template.broadcast)
    assert set(result.broadcast) == set(fedbnn.template.broadcast)
    for name in ("head.weight", "norms.2.running_var", "convs.1.omega"):
        expected = combined(replies, lambda r, n=name: r.array(n).astype(float))
        np.testing.assert_allclose(result.broadcast[name], expected, atol=1e-6)
    counter = result.broadcast["norms.0.num_batches_tracked"]
    assert counter.dtype == np.int64
    weights = [7, 12, 17]
    assert counter == round(np.average([0, 10, 20], weights=weights))


def test_averaging_the_clients_mixed_weights():
    fedbnn = method(aggregation="client")
    replies = random_replies(fedbnn, 3, seed=4)
    broadcast = fedbnn.template.broadcast
    result = fedbnn.aggregate(replies, broadcast)
    name, key = "convs.2", "convs.2.weight"

    def client_mixed(reply):
        z = std(reply.array(key))
        alpha = abs(math.sin(float(reply.array(f"{name}.theta"))))
        beta = abs(math.sin(float(reply.array(f"{name}.gamma"))))
        rotated = rot(z, reply.array(f"{name}.r1"), reply.array(f"{name}.r2"))
        server = std(broadcast[key])
        return z + alpha * beta * (rotated - z) + alpha * (1 - beta) * (server - z)

    np.testing.assert_allclose(
        result.candidates["mixed"][key], combined(replies, client_mixed), atol=1e-4
    )


def test_without_server_alignment_beta_and_lambda_are_one():
    fedbnn = method(server_alignment=False)
    replies = random_replies(fedbnn, 2)
    result = fedbnn.aggregate(replies, fedbnn.template.broadcast)
    for figures in result.layers.values():
        assert (figures["beta"], figures["lambda"]) == (1.0, 1.0)


@pytest.fixture(scope="module")
def client_round():
    fedbnn = method()
    data = ClientData.of(load_dataset("fmnist-mini"), np.arange(64))
    task = LocalTask(
        round_index=1,
        num_rounds=4,
        partition_id=0,
        seed=1,
        local_epochs=2,
        batch_size=32,
        lr=0.1,
    )
    broadcast = fedbnn.template.broadcast
    return fedbnn, broadcast, fedbnn.train(fedbnn.new_model(), broadcast, data, task)


def test_client_reply_has_the_expected_keys_shapes_and_types(client_round):
    fedbnn, _, update = client_round
    arrays, rotations = fedbnn.template.reply, fedbnn.template.rotations
    for got, expected in ((update.arrays, arrays), (update.rotations, rotations)):
        assert {n: (a.shape, a.dtype) for n, a in got.items()} == {
            n: (a.shape, a.dtype) for n, a in expected.items()
        }
    assert {k: len(v) for k, v in update.layer_metrics.items()} == {
        "alpha": 4,
        "beta": 4,
        "lambda": 4,
        "cos-phi": 4,
    }


def test_client_rotations_are_orthogonal_and_lower_the_angle(client_round):
    _, _, update = client_round
    for name, r in update.rotations.items():
        np.testing.assert_allclose(r.T @ r, np.eye(len(r)), atol=1e-5, err_msg=name)
    for layer in range(1, 4):
        z = std(update.arrays[f"convs.{layer}.weight"])
        turned = rot(
            z,
            update.rotations[f"convs.{layer}.r1"],
            update.rotations[f"convs.{layer}.r2"],
        )

        def cosine(v):
            flat = v.reshape(len(v), -1)
            norms = np.linalg.norm(flat, axis=1) * math.sqrt(flat.shape[1])
            return float((np.abs(flat).sum(axis=1) / norms).mean())

        assert cosine(turned) > cosine(z)
        logged = update.layer_metrics["cos-phi"][layer]
        assert logged == pytest.approx(cosine(turned), abs=1e-5)


def test_client_training_moves_weights_and_scalars(client_round):
    _, broadcast, update = client_round
    for name in ("convs.0.weight", "convs.3.theta", "convs.3.gamma", "head.weight"):
        assert not np.array_equal(broadcast[name], update.arrays[name]), name


def test_a_cached_model_gives_the_same_round(client_round):
    """A simulated process trains many clients with one model object."""
    fedbnn, broadcast, update = client_round
    data = ClientData.of(load_dataset("fmnist-mini"), np.arange(64))
    other = ClientData.of(load_dataset("fmnist-mini"), np.arange(64, 128))
    task = LocalTask(
        round_index=1,
        num_rounds=4,
        partition_id=0,
        seed=1,
        local_epochs=2,
        batch_size=32,
        lr=0.1,
    )
    model = fedbnn.new_model()
    fedbnn.train(model, broadcast, other, task)
    again = fedbnn.train(model, broadcast, data, task)
    for name, array in (update.arrays | update.rotations).items():
        assert np.array_equal(array, (again.arrays | again.rotations)[name]), name


def test_methods_are_found_by_name():
    assert {"fedavg", "fedbnn"} <= set(method_names())
    assert "base" not in method_names()


@pytest.mark.parametrize(
    ("omega", "expected"), [(0.0, 0.5), (2.0, 1 / (1 + math.exp(-2))), (-1e4, 0.0)]
)
def test_lambda_of_any_omega(omega, expected):
    fedbnn = method(method="fedbnn")
    replies = random_replies(fedbnn, 2)
    for reply in replies:
        reply.arrays["convs.0.omega"] = np.float32(omega)
    layers = fedbnn.aggregate(replies, fedbnn.template.broadcast).layers
    assert layers["convs.0"]["lambda"] == pytest.approx(expected)

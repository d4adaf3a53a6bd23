"""A method's template: true to what clients send, and one network for a server."""

import numpy as np
import pytest

from fedbnn_core.arrays import shape_only
from fedbnn_core.choices import method_names
from fedbnn_core.methods import base
from fedbnn_core.networks import build_model
from fedbnn_core.server.opening import open_run
from tests.methods.method_rounds import client_data, method, task
from tests.tiny_run import tiny_config, write_data


def described(arrays):
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}


@pytest.mark.parametrize("name", method_names())
@pytest.mark.parametrize("model", ["cnn4", "resnet10"])
def test_replies_look_like_the_template(name, model):
    tested = method(name, model=model, model_width=4)
    broadcast = tested.template.broadcast
    update = tested.train(
        tested.new_model(), broadcast, client_data(0, 8), task(lr=0.01)
    )
    assert described(update.arrays) == described(tested.template.reply)
    assert described(update.rotations) == described(tested.template.rotations)


@pytest.fixture
def constructions(monkeypatch):
    """Count the networks that methods build."""
    built = []

    def counted(spec, **options):
        built.append(spec)
        return build_model(spec, **options)

    monkeypatch.setattr(base, "build_model", counted)
    return built


@pytest.mark.parametrize("name", method_names())
def test_a_server_builds_one_network_before_round_1(tmp_path, constructions, name):
    data = write_data(tmp_path / "data.npz")
    run = open_run(tiny_config(data, tmp_path / "runs", method=name), 8)
    assert run.rules_for(0).arrays
    assert run.broadcast
    assert len(constructions) == 1


@pytest.mark.parametrize("name", method_names())
def test_a_client_builds_one_network(constructions, name):
    broadcast = method(name).template.broadcast
    constructions.clear()
    client = method(name)
    client.train(client.new_model(), broadcast, client_data(0, 8), task())
    assert len(constructions) == 1


@pytest.mark.parametrize("name", method_names())
def test_every_network_starts_from_the_same_weights(name):
    """Also the second one, which is not the one that the template was read from."""
    tested = method(name)
    start = tested.template.broadcast
    first, second = (tested.evaluation_model().state_dict() for _ in range(2))
    for key, value in first.items():
        assert np.array_equal(value.numpy(), start[key])
        assert np.array_equal(value.numpy(), second[key].numpy())
        assert value.data_ptr() != second[key].data_ptr()


def test_nobody_changes_the_first_broadcast():
    weights = method("fedavg").template.broadcast["convs.0.weight"]
    with pytest.raises(ValueError, match="read-only"):
        weights += 1


def test_a_shape_without_memory():
    array = shape_only((1000, 3), np.float32)
    assert (array.shape, array.dtype, array.nbytes) == ((1000, 3), np.float32, 12_000)
    assert array.strides == (0, 0)

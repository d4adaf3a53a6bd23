"""A binary layer's round: broadcast weights, rotations, scalars and clock."""

import copy
import math
import warnings

import numpy as np
import pytest
import torch

from fedbnn_core.binary.model import begin_epoch, begin_round, deployed
from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.binary.surrogate import Sharpness
from tests.binary.reference import layer_of, normal, plus_minus, standardized

WITHOUT_CLOCK = "trained without its clock"


def test_new_layers_start_with_moving_scalars() -> None:
    layer = layer_of(2, 2, 3)
    assert layer.alpha().item() == pytest.approx(math.sqrt(0.5))
    assert layer.beta().item() == pytest.approx(math.sqrt(0.5))
    assert layer.lam().item() == pytest.approx(0.5)
    layer.begin_epoch(Sharpness(1.0))
    with torch.no_grad():
        layer.weight += 0.1 * normal(*layer.weight.shape, seed=1)
    layer(normal(2, 2, 5, 5)).square().mean().backward()
    for scalar in (layer.omega, layer.theta, layer.gamma):
        assert scalar.grad.item() != 0.0


@pytest.mark.parametrize("theta", [-0.6, 2.5, 4.0])
def test_scalars_map_into_the_unit_interval(theta: float) -> None:
    layer = layer_of(2, 2, 3)
    with torch.no_grad():
        layer.theta.fill_(theta)
        layer.gamma.fill_(theta)
        layer.omega.fill_(theta)
    assert layer.alpha().item() == pytest.approx(abs(math.sin(theta)))
    assert layer.beta().item() == pytest.approx(abs(math.sin(theta)))
    assert layer.lam().item() == pytest.approx(1 / (1 + math.exp(-theta)))


def test_a_round_freezes_a_copy_of_the_broadcast_weights() -> None:
    layer = layer_of(4, 6, 3)
    with torch.no_grad():
        layer.weight.copy_(normal(*layer.weight.shape, seed=5))
    layer.begin_round()
    broadcast = layer.weight.detach().clone()
    with torch.no_grad():
        layer.weight += 1.0
    layer.begin_epoch(Sharpness(0.1))
    assert torch.equal(layer.w_server, broadcast)
    np.testing.assert_allclose(
        layer.z_server.numpy(), standardized(broadcast.numpy()), rtol=1e-4, atol=1e-5
    )
    layer.begin_round()
    assert torch.equal(layer.w_server, broadcast + 1.0)


@pytest.mark.parametrize("start", ["identity", "haar"])
def test_a_round_restarts_the_rotation_where_all_clients_start(start: str) -> None:
    options = BinaryOptions(rotation_start=start, seed=3)
    one = layer_of(4, 6, 3, seed=1, options=options)
    two = layer_of(4, 6, 3, seed=2, options=options)
    start_r1, start_r2 = one.r1.clone(), one.r2.clone()
    assert torch.equal(start_r1, two.r1)
    assert torch.equal(start_r2, two.r2)
    assert torch.equal(start_r1, torch.eye(6)) == (start == "identity")
    for layer in (one, two):
        layer.begin_epoch(Sharpness(1.0))
    assert not torch.allclose(one.r1, start_r1, atol=1e-3)
    assert not torch.allclose(one.r1, two.r1, atol=1e-3)
    one.begin_round()
    assert torch.equal(one.r1, start_r1)
    assert torch.equal(one.r2, start_r2)


def test_a_warm_start_is_nearer_to_the_broadcast_weights_signs() -> None:
    """Equal on all clients, which only share the broadcast, and better than I."""
    options = BinaryOptions(rotation_start="warm", initial_std=0.5)
    one = layer_of(16, 6, 3, seed=1, options=options)  # 6 filters of 12 x 12
    two = layer_of(16, 6, 3, seed=2, options=options)
    with torch.no_grad():
        two.weight.copy_(one.weight)
    for layer in (one, two):
        layer.begin_round()
    assert torch.equal(one.r1, two.r1)
    assert torch.equal(one.r2, two.r2)
    for r in one.rotation:
        r64 = r.double()
        np.testing.assert_allclose(r64.T @ r64, np.eye(len(r)), atol=1e-5)

    def bias(r1: np.ndarray, r2: np.ndarray) -> float:
        z = standardized(one.weight.detach().numpy()).reshape(6, len(r1), len(r2))
        turned = np.einsum("ji,fjk,kl->fil", r1, z, r2).reshape(6, -1)
        norms = np.linalg.norm(turned, axis=1) * math.sqrt(turned.shape[1])
        return float((np.abs(turned).sum(axis=1) / norms).mean())

    at_rest = bias(np.eye(12), np.eye(12))
    assert bias(*(r.double().numpy() for r in one.rotation)) > at_rest + 0.01


def test_another_seed_gives_another_haar_start() -> None:
    one, two = (
        layer_of(4, 6, 3, options=BinaryOptions(rotation_start="haar", seed=seed))
        for seed in (1, 2)
    )
    assert not torch.allclose(one.r1, two.r1, atol=1e-2)


def test_rotations_are_learned_on_the_fused_weights() -> None:
    layer = layer_of(4, 6, 3)
    w_server = layer.weight.detach().double().numpy().copy()
    with torch.no_grad():
        layer.weight.copy_(normal(*layer.weight.shape, seed=6))
        layer.omega.fill_(0.7)
    layer.begin_epoch(Sharpness(1.0))

    lam = 1 / (1 + math.exp(-0.7))
    local = layer.weight.detach().double().numpy()
    x = standardized(lam * local + (1 - lam) * w_server).reshape(6, 6, 6)
    r1, r2 = np.eye(6), np.eye(6)
    for _ in range(3):
        b = plus_minus(r1.T @ x @ r2)
        u, _, v_t = np.linalg.svd(sum(b[i] @ r2.T @ x[i].T for i in range(6)))
        r1 = v_t.T @ u.T
        u, _, v_t = np.linalg.svd(sum(x[i].T @ r1 @ b[i] for i in range(6)))
        r2 = u @ v_t
    np.testing.assert_allclose(layer.r1.numpy(), r1, atol=1e-4)
    np.testing.assert_allclose(layer.r2.numpy(), r2, atol=1e-4)


def test_the_next_epoch_continues_from_the_last_rotation() -> None:
    twice = layer_of(4, 6, 3)
    once = layer_of(4, 6, 3, options=BinaryOptions(rotation_iterations=6))
    twice.begin_epoch(Sharpness(1.0))
    twice.begin_epoch(Sharpness(1.0))
    once.begin_epoch(Sharpness(1.0))
    torch.testing.assert_close(twice.r1, once.r1)
    torch.testing.assert_close(twice.r2, once.r2)


def test_zero_iterations_keep_the_start() -> None:
    layer = layer_of(4, 6, 3, options=BinaryOptions(rotation_iterations=0))
    layer.begin_epoch(Sharpness(0.3))
    assert torch.equal(layer.r1, torch.eye(6))
    assert layer.sharpness.t == 0.3


def test_without_server_alignment_the_server_leaves_no_trace() -> None:
    layer = layer_of(4, 6, 3, options=BinaryOptions(server_alignment=False))
    with torch.no_grad():
        layer.weight.copy_(normal(*layer.weight.shape, seed=7))
    layer.begin_epoch(Sharpness(1.0))
    assert layer.beta().item() == 1.0
    assert layer.lam().item() == 1.0
    layer(normal(2, 4, 5, 5)).square().mean().backward()
    assert layer.omega.grad is None
    assert layer.gamma.grad is None
    assert layer.theta.grad.item() != 0.0

    before = layer.binary_weight().detach()
    with torch.no_grad():
        layer.w_server.copy_(normal(*layer.weight.shape, seed=8))
        layer.z_server.copy_(layer.w_server)
    assert torch.equal(layer.binary_weight(), before)


def test_training_without_the_clock_warns_once() -> None:
    layer = layer_of(2, 3, 3)
    x = normal(2, 2, 5, 5)
    with pytest.warns(UserWarning, match=WITHOUT_CLOCK):
        layer(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x)


@pytest.mark.parametrize("use", ["clock", "evaluation", "no gradient", "deployed"])
def test_other_uses_of_a_layer_do_not_warn_of_its_clock(use: str) -> None:
    layer = layer_of(2, 3, 3)
    if use == "clock":
        begin_round(layer)
        begin_epoch(layer, Sharpness.at(0, 5, 0, 1))
    layer.train(use != "evaluation")
    deployed(layer, on=use == "deployed")
    with warnings.catch_warnings(), torch.set_grad_enabled(use != "no gradient"):
        warnings.simplefilter("error")
        layer(normal(2, 2, 5, 5))


def test_a_copy_that_goes_back_to_training_still_warns() -> None:
    twin = copy.deepcopy(deployed(layer_of(2, 3, 3)))
    twin(normal(2, 2, 5, 5))
    with pytest.warns(UserWarning, match=WITHOUT_CLOCK):
        deployed(twin, on=False)(normal(2, 2, 5, 5))

"""The signs of all layers at once against those of one layer, and plain formulas."""

import math

import pytest
import torch
from torch import Tensor

from fedbnn_core.binary.batched_mixing import mixed_signs
from fedbnn_core.binary.mixing import (
    STD_EPS,
    angle_share,
    client_share,
    mixed_sign,
    standardize_filters,
)
from fedbnn_core.binary.mixing_plan import plan_mixing
from fedbnn_core.binary.rotation import common_start
from fedbnn_core.binary.surrogate import Sharpness

SHAPES = [
    (6, 1, 7, 7),
    (5, 4, 3, 3),
    (5, 4, 3, 3),
    (5, 4, 3, 3),
    (8, 4, 3, 3),
    (7, 12, 1, 1),
    (7, 12, 1, 1),
    (3, 2, 1, 1),
    (1, 3, 2, 2),
]
NAMES = ("weight", "omega", "theta", "gamma")


class Layers:
    """Some layers' weights, scalars, buffers and upstream gradients."""

    def __init__(self, dtype: torch.dtype, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.weights = [(0.05 + 0.3 * draw(*s)).to(dtype) for s in SHAPES]
        self.w_server = [
            w + (0.2 * draw(*s)).to(dtype)
            for s, w in zip(SHAPES, self.weights, strict=True)
        ]
        self.scalars = [(2 * draw(3)).to(dtype) for _ in SHAPES]
        self.rotations = [
            tuple(
                r.to(dtype)
                for r in common_start(math.prod(s[1:]), start="haar", seed=(i,))
            )
            for i, s in enumerate(SHAPES)
        ]
        self.upstream = [draw(*s).to(dtype) for s in SHAPES]

    def leaves(self) -> list[list[Tensor]]:
        """Return weight, omega, theta and gamma of each layer, to be trained."""
        return [
            [w.clone().requires_grad_(), *(x.clone().requires_grad_() for x in s)]
            for w, s in zip(self.weights, self.scalars, strict=True)
        ]

    def together(
        self, sharpness: Sharpness, server_alignment: bool = True
    ) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Return signs and gradients of the code under test."""
        leaves = self.leaves()
        plan = plan_mixing(
            [
                (w, standardize_filters(w), *r)
                for w, r in zip(self.w_server, self.rotations, strict=True)
            ],
            server_alignment=server_alignment,
        )
        signs = mixed_signs(
            plan,
            [of_layer[0] for of_layer in leaves],
            [(o, t, g) for _, o, t, g in leaves],
            sharpness,
        )
        torch.autograd.backward(signs, self.upstream)
        return list(signs), [[leaf.grad for leaf in part] for part in leaves]

    def one_by_one(
        self, sharpness: Sharpness, server_alignment: bool = True
    ) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Return signs and gradients of `mixed_sign`."""
        leaves, signs = self.leaves(), []
        for index, (w, omega, theta, gamma) in enumerate(leaves):
            one = torch.ones_like(omega)
            signs.append(
                mixed_sign(
                    w,
                    lam=client_share(omega) if server_alignment else one,
                    alpha=angle_share(theta),
                    beta=angle_share(gamma) if server_alignment else one,
                    w_server=self.w_server[index],
                    z_server=standardize_filters(self.w_server[index]),
                    rotation=self.rotations[index],
                    sharpness=sharpness,
                )
            )
        torch.autograd.backward(signs, self.upstream)
        return signs, [[leaf.grad for leaf in part] for part in leaves]


@pytest.mark.parametrize("server_alignment", [True, False])
@pytest.mark.parametrize("t", [0.01, 1.0, 2.5])
def test_layers_together_are_the_layers_one_by_one(t, server_alignment) -> None:
    layers = Layers(torch.float64)
    signs, grads = layers.together(Sharpness(t), server_alignment)
    expected, expected_grads = layers.one_by_one(Sharpness(t), server_alignment)
    for index, shape in enumerate(SHAPES):
        assert torch.equal(signs[index], expected[index])
        # Stored channels-last, also where a dimension has one element.
        assert signs[index].stride() == expected[index].stride()
        for name, ours, theirs in zip(
            NAMES, grads[index], expected_grads[index], strict=True
        ):
            if theirs is None:
                assert ours is None, name
                continue
            scale = float(theirs.abs().max())
            torch.testing.assert_close(
                ours,
                theirs,
                rtol=1e-9,
                atol=1e-10 * scale + 1e-12,
                msg=f"{name} {shape}",
            )


def test_gradients_equal_autograd_of_the_plain_formula() -> None:
    """Every step written out, and the surrogate's antiderivative for the sign."""
    layers = Layers(torch.float64, seed=3)
    t, k = 0.4, 2.5
    _, grads = layers.together(Sharpness(t))
    leaves = layers.leaves()
    for index, (w, omega, theta, gamma) in enumerate(leaves):
        lam, alpha, beta = omega.sigmoid(), theta.sin().abs(), gamma.sin().abs()
        server = layers.w_server[index]
        r1, r2 = layers.rotations[index]
        fused = std(lam * w + (1 - lam) * server)
        turned = (torch.kron(r1, r2).T @ fused.flatten(1).T).T.reshape(w.shape)
        mixed = (
            (1 - alpha) * fused
            + alpha * beta * turned
            + alpha * (1 - beta) * std(server)
        )
        size = mixed.abs().clamp_max(math.sqrt(2) / t)
        smooth = mixed.sign() * k * (math.sqrt(2) * t * size - t * t * size**2 / 2)
        (smooth * layers.upstream[index]).sum().backward()
    for ours, plain in zip(grads, leaves, strict=True):
        for got, leaf in zip(ours, plain, strict=True):
            torch.testing.assert_close(got, leaf.grad, rtol=1e-8, atol=1e-9)


def std(v: Tensor) -> Tensor:
    flat = v.flatten(1)
    centred = flat - flat.mean(dim=1, keepdim=True)
    return (centred / (flat.std(dim=1, keepdim=True) + STD_EPS)).reshape(v.shape)


def test_float32_gradients_are_accurate() -> None:
    exact, rough = Layers(torch.float64), Layers(torch.float32)
    _, expected = exact.together(Sharpness(0.5))
    _, grads = rough.together(Sharpness(0.5))
    for ours, theirs in zip(grads, expected, strict=True):
        for got, want in zip(ours, theirs, strict=True):
            scale = float(want.abs().max()) + 1.0
            torch.testing.assert_close(
                got.double() / scale, want / scale, rtol=0, atol=2e-5
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e-30, -5.0])
def test_constant_filters_stay_finite(dtype: torch.dtype, value: float) -> None:
    layers = Layers(dtype)
    for w, server in zip(layers.weights, layers.w_server, strict=True):
        w[0], server[0] = value, value
    signs, grads = layers.together(Sharpness(0.5))
    for sign, of_layer in zip(signs, grads, strict=True):
        assert set(sign.unique().tolist()) <= {-1.0, 1.0}
        assert all(torch.isfinite(grad).all() for grad in of_layer)


def test_equal_client_and_server_weights_give_lambda_no_gradient() -> None:
    layers = Layers(torch.float32)
    layers.w_server = [w.clone() for w in layers.weights]
    _, grads = layers.together(Sharpness(0.5))
    assert all(float(omega) == 0.0 for _, omega, _, _ in grads)


def test_a_layer_without_a_gradient_of_its_own_gets_zeros() -> None:
    layers = Layers(torch.float32)
    leaves = layers.leaves()
    buffers = [
        (w, standardize_filters(w), *r)
        for w, r in zip(layers.w_server, layers.rotations, strict=True)
    ]
    signs = mixed_signs(
        plan_mixing(buffers, server_alignment=True),
        [w for w, *_ in leaves],
        [(o, t, g) for _, o, t, g in leaves],
        Sharpness(1.0),
    )
    signs[0].sum().backward()
    assert leaves[0][0].grad.abs().sum() > 0
    assert all(float(w.grad.abs().sum()) == 0.0 for w, *_ in leaves[1:])

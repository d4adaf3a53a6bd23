"""Networks trained in integers: native code and torch step by step."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbnn_core.binary import block, integer_conv, layer, native_steps
from fedbnn_core.binary.model import begin_epoch, begin_round
from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.binary.surrogate import Sharpness
from fedbnn_core.networks import ModelSpec, build_model

NETWORKS = [
    {"name": "cnn4"},
    {"name": "cnn4", "pool_before_bn": True},
    {"name": "cnn4", "float_first": True},
    {"name": "resnet10", "width": 5},
    {"name": "resnet18", "width": 3},
]


def step(
    settings: dict[str, object], bits: int, size: int = 17, batch: int = 3
) -> tuple[Tensor, dict[str, Tensor], nn.Module]:
    """Return loss and gradients of one training step, and the network."""
    spec = ModelSpec(
        input_shape=(3, size, size),
        num_classes=4,
        options=BinaryOptions(gradient_bits=bits),
        **settings,  # type: ignore[arg-type]
    )
    model = build_model(spec, seed=1).train()
    begin_round(model)
    begin_epoch(model, Sharpness(0.5), seed=9)
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(batch, 3, size, size, generator=generator)
    loss = F.cross_entropy(model(images), torch.arange(batch) % 4)
    loss.backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), grads, model


@pytest.mark.skipif(not native_steps.kernels(), reason="no C compiler")
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("settings", NETWORKS, ids=str)
def test_native_and_torch_make_the_same_step(
    settings: dict[str, object], bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, grads, model = step(settings, bits)
    monkeypatch.setattr(native_steps, "supports", lambda shape, x: False)
    same_loss, same_grads, twin = step(settings, bits)
    assert torch.equal(loss, same_loss)
    assert grads.keys() == same_grads.keys()
    for name, grad in grads.items():
        scale = float(same_grads[name].abs().max()) + 1e-12
        torch.testing.assert_close(
            grad / scale, same_grads[name] / scale, rtol=1e-4, atol=1e-4, msg=name
        )
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[name])


@pytest.mark.skipif(not native_steps.kernels(), reason="no C compiler")
@pytest.mark.parametrize("settings", NETWORKS, ids=str)
def test_sums_made_anew_give_the_gradients_of_kept_ones(
    settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    convolve, calls = native_steps.convolve, []

    def counted(*arguments: object) -> Tensor:
        calls.append(arguments[0])
        return convolve(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(native_steps, "convolve", counted)
    _, kept, _ = step(settings, 8)
    forward = len(calls)
    monkeypatch.setattr(integer_conv, "_KEPT_BYTES", 0)
    _, anew, _ = step(settings, 8)
    assert len(calls) == 3 * forward > 0
    assert all(torch.equal(grad, kept[name]) for name, grad in anew.items())


@pytest.mark.skipif(len(native_steps.kernels()) < 2, reason="one kernel set only")
@pytest.mark.parametrize("settings", NETWORKS, ids=str)
def test_every_kernel_set_makes_the_same_step_bit_for_bit(
    settings: dict[str, object],
) -> None:
    steps = []
    for kernel in native_steps.kernels():
        native_steps.use_kernel(kernel)
        try:
            steps.append(step(settings, 8))
        finally:
            native_steps.use_kernel("auto")
    for loss, grads, _ in steps[1:]:
        assert torch.equal(loss, steps[0][0])
        assert all(torch.equal(grads[name], steps[0][1][name]) for name in grads)


@pytest.mark.parametrize("name", ["cnn4", "convnext-tiny"])
def test_every_parameter_gets_a_finite_gradient(name: str) -> None:
    _, grads, model = step({"name": name}, 8, batch=2)
    assert len(grads) == len(list(model.parameters()))
    assert all(grad.isfinite().all() for grad in grads.values())


def test_float_gradients_do_without_the_integer_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block, "normalized_conv", None)
    monkeypatch.setattr(layer, "convolve_signs", None)
    loss, _, _ = step({"name": "cnn4"}, 32)
    assert loss.isfinite()

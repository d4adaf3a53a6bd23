"""Post-training binarization against its formula."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedbnn_core.binary.post_training import binarize_float_model
from fedbnn_core.binary.surrogate import sign
from fedbnn_core.errors import ConfigError
from fedbnn_core.networks import ModelSpec, build_model
from tests.methods.method_rounds import method


def twin(name: str, shape: tuple[int, int, int], **kwargs: int) -> nn.Module:
    """A float twin whose weights and norms are those of no initialization."""
    model = build_model(ModelSpec(name, shape, 7, binary=False, **kwargs), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value += 0.3 * torch.rand(value.shape, generator=generator)
        for parameter in model.parameters():
            parameter -= 0.15
    return model.eval()


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def binary_weight(w: torch.Tensor, norm: str) -> torch.Tensor:
    values = w.detach().double().numpy()
    if norm == "l2":
        scale = math.sqrt((values**2).sum()) / math.sqrt(values.size)
    else:
        scale = np.abs(values).sum() / values.size
    return torch.tensor(np.where(values >= 0, scale, -scale)).float()


def norm_of(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    mean, var = norm.running_mean[:, None, None], norm.running_var[:, None, None]
    x = (x - mean) / torch.sqrt(var + norm.eps)
    return x * norm.weight[:, None, None] + norm.bias[:, None, None]


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_cnn4_equals_the_formula(norm: str) -> None:
    model = twin("cnn4", (1, 28, 28))
    x = images(3, 1, 28, 28)
    h = x
    with torch.no_grad():
        for conv, bn in zip(model.convs, model.norms, strict=True):
            h = F.conv2d(h.sign(), binary_weight(conv.weight, norm), padding=1)
            h = F.max_pool2d(F.relu(norm_of(bn, h)), 2)
        expected = h.flatten(1) @ model.head.weight.t()
        out = binarize_float_model(model, norm=norm)(x)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_resnet_keeps_its_stem_and_binarises_its_shortcuts() -> None:
    model = twin("resnet10", (3, 12, 12), width=4)
    x = images(2, 3, 12, 12)

    def conv(layer: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
        w = binary_weight(layer.weight, "l2")
        return F.conv2d(x.sign(), w, stride=layer.stride, padding=layer.padding)

    with torch.no_grad():
        h = F.relu(norm_of(model.stem_norm, F.conv2d(x, model.stem.weight, padding=1)))
        for block in model.blocks:
            short = h
            if not isinstance(block.shortcut, nn.Identity):
                short = norm_of(block.shortcut[1], conv(block.shortcut[0], h))
            h1 = F.relu(norm_of(block.norm1, conv(block.conv1, h)))
            h = F.relu(norm_of(block.norm2, conv(block.conv2, h1)) + short)
        features = h.mean(dim=(2, 3))
        bn = model.head_norm
        features = (features - bn.running_mean) / torch.sqrt(bn.running_var + bn.eps)
        features = features * bn.weight + bn.bias
        expected = features @ model.head.weight.t() + model.head.bias
        out = binarize_float_model(model)(x)
    torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-4)


def test_convnext_binarises_all_but_the_stem() -> None:
    spec = ModelSpec("convnext-tiny", (3, 16, 16), 7, binary=False)
    model = build_model(spec, seed=4)
    done = binarize_float_model(model)
    for (name, before), after in zip(
        model.named_modules(), done.modules(), strict=True
    ):
        if isinstance(before, nn.Conv2d):
            smallest, largest = after.weight.detach().abs().aminmax()
            assert (smallest == largest) == (name != "stem"), name
            assert torch.equal(before.bias, after.bias)


def test_all_else_is_untouched_and_the_model_is_copied() -> None:
    model = twin("cnn4", (1, 16, 16))
    before = copy.deepcopy(model.state_dict())
    done = binarize_float_model(model).state_dict()
    assert list(done) == list(before)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
        assert torch.equal(done[name], value) == ("convs" not in name), name


def test_norms_are_preserved() -> None:
    model = twin("cnn4", (1, 16, 16))
    for norm, order in (("l2", 2), ("l1", 1)):
        done = binarize_float_model(model, norm=norm)
        for before, after in zip(model.convs, done.convs, strict=True):
            wanted = torch.linalg.vector_norm(before.weight.double(), order).item()
            found = torch.linalg.vector_norm(after.weight.double(), order).item()
            assert found == pytest.approx(wanted, rel=1e-5)


def test_zero_activations_stay_zero_and_zero_weights_do_not() -> None:
    conv = nn.Conv2d(1, 1, 2, bias=False)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([[[[0.0, -2.0], [2.0, 2.0]]]]))
    done = binarize_float_model(nn.Sequential(conv), norm="l1")
    x = torch.tensor([[[[5.0, 0.0], [-3.0, 0.0]]]])
    # Signs of the inputs 1, 0, -1, 0; of the weights 1, -1, 1, 1; mean |w| = 1.5.
    assert done(x).item() == pytest.approx(1.5 * (1 - 1))
    x[0, 0, 0, 1] = 0.1
    assert done(x).item() == pytest.approx(1.5 * (1 - 1 - 1))


def test_plus_one_for_zero_would_erase_a_relu_network() -> None:
    """Why torch's sign is used: behind a ReLU the binary nets' sign is all +1."""
    model = twin("cnn4", (1, 28, 28))
    inputs: list[torch.Tensor] = []
    for network in (model, binarize_float_model(model)):
        network.convs[1].register_forward_pre_hook(lambda _m, x: inputs.append(x[0]))
        with torch.no_grad():
            network(images(4, 1, 28, 28))
    behind_relu, signed = inputs
    assert set(sign(behind_relu).unique().tolist()) == {1.0}
    assert set(signed.unique().tolist()) == {0.0, 1.0}


def test_kept_names_stay_float() -> None:
    model = twin("cnn4", (1, 16, 16))
    done = binarize_float_model(model, keep=("convs.0",))
    x = images(2, 1, 16, 16)
    assert torch.equal(done.convs[0](x), model.convs[0](x))
    assert not torch.equal(done.convs[1].weight, model.convs[1].weight)


def test_a_binary_network_is_refused() -> None:
    model = build_model(ModelSpec("cnn4", (1, 16, 16), 7))
    with pytest.raises(ConfigError, match="binary already"):
        binarize_float_model(model)


def test_an_unknown_norm_is_named() -> None:
    with pytest.raises(ConfigError, match=r"l2, l1.*'max'"):
        binarize_float_model(nn.Sequential(), norm="max")


@pytest.mark.parametrize(
    ("model", "settings", "kept"),
    [
        ("cnn4", {"float_first": False}, set()),
        ("cnn4", {"float_first": True}, {"convs.0"}),
        ("resnet10", {"model_width": 4}, {"stem"}),
    ],
)
def test_float_methods_binarise_what_fedbnn_does(model, settings, kept) -> None:
    fedavg = method("fedavg", model=model, **settings)
    trained = fedavg.evaluation_model()
    variants = fedavg.final_variants(trained)
    assert variants.keys() == {"ptb", "ptb_l1"}
    for variant in variants.values():
        convolutions = {
            name: (part.weight, dict(variant.named_modules())[name].weight)
            for name, part in trained.named_modules()
            if isinstance(part, nn.Conv2d)
        }
        same = {n for n, (a, b) in convolutions.items() if torch.equal(a, b)}
        assert same == kept

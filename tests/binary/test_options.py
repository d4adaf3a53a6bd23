"""Options of binary layers: wrong values are named."""

import math

import pytest
import torch

from fedbnn_core.binary import native_steps
from fedbnn_core.binary.layer import RotatedBinaryConv2d
from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.errors import ConfigError


@pytest.mark.parametrize(
    ("option", "match"),
    [
        ({"activation": "dynamic"}, "static.*per-sample.*'dynamic'"),
        ({"rotation_start": "zero"}, "identity.*haar.*warm.*'zero'"),
    ],
)
def test_wrong_options_are_named(option: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        BinaryOptions(**option)  # type: ignore[arg-type]


@pytest.mark.parametrize(("std", "spread"), [(0.0, 1 / math.sqrt(3 * 576)), (0.3, 0.3)])
def test_initial_weights_have_the_spread_asked_for(std: float, spread: float) -> None:
    """Torch's default is uniform up to 1/sqrt(n), hence 1/sqrt(3 n)."""
    torch.manual_seed(0)
    layer = RotatedBinaryConv2d(64, 64, 3, options=BinaryOptions(initial_std=std))
    assert float(layer.weight.detach().std()) == pytest.approx(spread, rel=0.02)


def test_the_clients_share_starts_where_asked() -> None:
    layer = RotatedBinaryConv2d(2, 2, 3, options=BinaryOptions(omega_start=3.0))
    assert float(layer.lam()) == pytest.approx(1 / (1 + math.exp(-3)))


@pytest.mark.parametrize(
    ("chosen", "device", "bits"),
    [(0, "meta", 32), (0, "cpu", 8), (4, "meta", 4), (32, "cpu", 32)],
)
def test_eight_bits_are_chosen_where_the_kernels_are(
    chosen: int, device: str, bits: int
) -> None:
    if (chosen, device) == (0, "cpu") and not native_steps.kernels():
        pytest.skip("installed without a C compiler")
    weight = torch.zeros(2, 2, 3, 3, device=device)
    assert BinaryOptions(gradient_bits=chosen).bits_for(weight) == bits

"""Before training: the sizes are those of the export, and suggestions fit."""

from dataclasses import replace

import pytest

from fedbnn_core.export.fit import fit_network, network_sizes, suggest_fits
from fedbnn_core.networks import ModelSpec
from fedbnn_core.packed.mcu.sizes import chip_sizes
from tests.packed.mcu.projects import random_network

CNN4 = ModelSpec("cnn4", (1, 28, 28), 10)
RESNET = ModelSpec("resnet10", (3, 32, 32), 10, width=16)


@pytest.mark.parametrize("int8_head", [False, True])
@pytest.mark.parametrize("spec", [CNN4, RESNET], ids=["cnn4", "resnet10"])
def test_untrained_needs_what_trained_needs(spec: ModelSpec, int8_head: bool) -> None:
    trained = chip_sizes(random_network(spec, int8_head=int8_head))
    untrained = network_sizes(spec, int8_head=int8_head)
    # Names of classes: ten letters here, seven there ("class 0").
    longer = replace(untrained, network_bytes=trained.network_bytes)
    assert longer == trained
    assert 0 <= untrained.network_bytes - trained.network_bytes <= 10 * 3 + 3


def test_int8_head_is_suggested_when_flash_is_short() -> None:
    flash = network_sizes(CNN4).flash_bytes - 1
    assert not fit_network(CNN4, ram=None, flash=flash)[0]
    found = list(suggest_fits(CNN4, ram=None, flash=flash))
    assert found[0].spec == CNN4
    assert found[0].int8_head
    assert all(fit.sizes.fits(ram=None, flash=flash) for fit in found)


def test_width_and_image_are_suggested_when_ram_is_short() -> None:
    ram = 64 * 1024
    assert not fit_network(RESNET, ram=ram, flash=None)[0]
    narrower, smaller = suggest_fits(RESNET, ram=ram, flash=None)
    assert (narrower.spec.width, narrower.spec.input_shape) == (8, (3, 32, 32))
    assert (smaller.spec.width, smaller.spec.input_shape) == (16, (3, 28, 28))
    for fit in (narrower, smaller):
        assert fit.sizes == network_sizes(fit.spec)
        assert fit.sizes.fits(ram=ram, flash=None)


def test_nothing_fits_a_tiny_chip() -> None:
    assert list(suggest_fits(RESNET, ram=1024, flash=1024)) == []

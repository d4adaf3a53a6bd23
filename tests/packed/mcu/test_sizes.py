"""Sizes before building: parsing them, and what counts."""

import numpy as np
import pytest

from fedbnn_core.errors import ConfigError
from fedbnn_core.packed.mcu.sizes import chip_sizes, parse_size
from tests.packed.graphs import everything


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64k", 65536),
        ("64K", 65536),
        ("128KiB", 131072),
        ("1m", 1048576),
        ("5408", 5408),
    ],
)
def test_parse_size(text: str, size: int) -> None:
    assert parse_size(text, "--target-ram") == size


@pytest.mark.parametrize("text", ["", "k", "-1k", "0", "1.5k", "64g", "a lot"])
def test_bad_sizes_name_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match="--target-ram is a size such as 64k"):
        parse_size(text, "--target-ram")


def test_limits_are_inclusive() -> None:
    sizes = chip_sizes(everything(8, np.random.default_rng(0), layer_norm=False))
    ram, flash = sizes.ram_bytes, sizes.flash_bytes
    assert sizes.fits(ram=ram, flash=flash)
    assert sizes.fits(ram=None, flash=None)
    assert not sizes.fits(ram=ram - 1, flash=flash)
    assert not sizes.fits(ram=ram, flash=flash - 1)
    assert sizes.image_bytes == 8 * 9 * 3

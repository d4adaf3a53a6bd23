"""Say before training whether a network will fit a chip, and what would."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedbnn_core.binary.model import deployed
from fedbnn_core.export.pack import pack
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.packed.mcu.sizes import ChipSizes, chip_sizes

__all__ = ["Fit", "fit_network", "network_sizes", "suggest_fits"]

_WIDTHS = (48, 32, 24, 16, 8, 4)
_SIDES = (96, 64, 48, 32, 28, 24, 20, 16)
_SMALLEST_SIDE = 16
"""That CNN4 can halve four times."""


@dataclass(frozen=True)
class Fit:
    """A network on a chip."""

    spec: ModelSpec
    int8_head: bool
    sizes: ChipSizes


def network_sizes(spec: ModelSpec, *, int8_head: bool = False) -> ChipSizes:
    """Return what an untrained network needs, as the export of a trained one reports.

    Class names count as ten letters each.

    Raises
    ------
    FedBNNError
        The network is a float one or cannot be exported for a chip.
    """
    graph = pack(
        deployed(build_model(spec, seed=0)),
        class_names=["x" * 10] * spec.num_classes,
        mean=[0.5],
        std=[0.5],
        input_shape=spec.input_shape,
        int8_head=int8_head,
    )
    return chip_sizes(graph)


def fit_network(
    spec: ModelSpec, *, ram: int | None, flash: int | None, int8_head: bool = False
) -> tuple[bool, Fit]:
    """Return whether a network fits, and its sizes; None is no limit."""
    sizes = network_sizes(spec, int8_head=int8_head)
    return sizes.fits(ram=ram, flash=flash), Fit(spec, int8_head, sizes)


def suggest_fits(
    spec: ModelSpec, *, ram: int | None, flash: int | None
) -> Iterator[Fit]:
    """Yield networks that fit, each with one change to the wanted one.

    The head becomes int8, or the ResNet narrower, or the image smaller; the last two
    take the largest of some common values that fits, if need be with an int8 head.
    CNN4 has no width.
    """
    if spec.name.startswith("resnet"):
        narrower = [replace(spec, width=w) for w in _WIDTHS if w < spec.width]
    else:
        narrower = []
    channels, height, width = spec.input_shape
    longest = max(height, width)
    shapes = [
        (channels, side * height // longest, side * width // longest)
        for side in _SIDES
        if side < longest
    ]
    smaller = [
        replace(spec, input_shape=shape)
        for shape in shapes
        if min(shape[1:]) >= _SMALLEST_SIDE
    ]
    for changes in ([spec], narrower, smaller):
        found = _first_fit(changes, ram=ram, flash=flash)
        if found is not None:
            yield found


def _first_fit(
    specs: list[ModelSpec], *, ram: int | None, flash: int | None
) -> Fit | None:
    """Return the first that fits; ``specs`` go from large to small."""
    if len(specs) > 1 and _fitting(specs[-1], ram=ram, flash=flash) is None:
        return None
    fitting = (_fitting(spec, ram=ram, flash=flash) for spec in specs)
    return next((found for found in fitting if found is not None), None)


def _fitting(spec: ModelSpec, *, ram: int | None, flash: int | None) -> Fit | None:
    """Return a network if it fits, with an int8 head if need be."""
    fits, found = fit_network(spec, ram=ram, flash=flash)
    if not fits and found.sizes.fits(ram=ram, flash=None):
        # An int8 head saves flash only.
        fits, found = fit_network(spec, ram=ram, flash=flash, int8_head=True)
    return found if fits else None

"""`fedbnn fit-check`: say before training whether the network will fit a chip."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedbnn_core.cli.options import ConfigKeys
from fedbnn_core.config import RunConfig, Value
from fedbnn_core.errors import ConfigError

if TYPE_CHECKING:
    from fedbnn_core.export.fit import Fit
    from fedbnn_core.networks import ModelSpec
    from fedbnn_core.packed.mcu.sizes import ChipSizes

__all__ = ["check_fit", "fit_check", "size_lines"]


def fit_check(
    target_ram: Annotated[
        str | None, typer.Option(help="RAM of the chip for the network, as 64k.")
    ] = None,
    target_flash: Annotated[
        str | None, typer.Option(help="Flash of the chip for the network, as 128k.")
    ] = None,
    config: ConfigKeys = None,
    int8_head: Annotated[
        bool, typer.Option("--int8-head", help="With the classifier as int8.")
    ] = False,
) -> None:
    """Say whether the network of a run would fit a microcontroller, before training."""
    from fedbnn_core.cli.run import parse_overrides

    check_fit(
        parse_overrides(config or []),
        target_ram=target_ram,
        target_flash=target_flash,
        int8_head=int8_head,
        console=Console(highlight=False, soft_wrap=True),
    )


def check_fit(
    overrides: dict[str, Value],
    *,
    target_ram: str | None,
    target_flash: str | None,
    int8_head: bool = False,
    console: Console,
) -> None:
    """Print what the configured network needs.

    Raises
    ------
    ConfigError
        It does not fit; the message says what would.
    """
    from fedbnn_core.export.fit import fit_network, suggest_fits
    from fedbnn_core.packed.mcu.sizes import parse_size

    ram = None if target_ram is None else parse_size(target_ram, "--target-ram")
    flash = None if target_flash is None else parse_size(target_flash, "--target-flash")
    spec = _spec(RunConfig.from_mapping(overrides, complete=False))
    fits, found = fit_network(spec, ram=ram, flash=flash, int8_head=int8_head)
    console.print(f"{_name(found)} on a microcontroller:", markup=False)
    for line in size_lines(found.sizes):
        console.print(f"  {line}", markup=False)
    if fits:
        limits = " and ".join(
            text
            for text, given in (
                (f"{target_ram} of RAM", ram),
                (f"{target_flash} of flash", flash),
            )
            if given is not None
        )
        if limits:
            console.print(f"It fits {limits}.")
        return
    missing = " and ".join(
        f"{need:,} bytes of {name}, {limit:,} are there"
        for name, need, limit in (
            ("RAM", found.sizes.ram_bytes, ram),
            ("flash", found.sizes.flash_bytes, flash),
        )
        if limit is not None and need > limit
    )
    others = [_change(spec, fit) for fit in suggest_fits(spec, ram=ram, flash=flash)]
    raise ConfigError(
        f"{_name(found)} does not fit: it needs {missing}. "
        + ("What would fit: " + "; ".join(others) if others else _NOTHING)
    )


_NOTHING = (
    "No narrower network, int8 head or smaller image of it fits either; choose model "
    "cnn4 or a larger chip"
)


def size_lines(sizes: "ChipSizes") -> list[str]:
    """Return the lines of a report: flash, RAM and work of one image."""
    return [
        f"flash  {sizes.flash_bytes:>9,} bytes: network {sizes.network_bytes:,}, "
        f"code at most {sizes.code_bytes:,}",
        f"RAM    {sizes.ram_bytes:>9,} bytes: arena {sizes.arena_bytes:,}, image "
        f"{sizes.image_bytes:,}, stack at most {sizes.stack_bytes:,}",
        f"MACs   {sizes.binary_macs + sizes.float_macs:>9,}: {sizes.binary_macs:,} "
        f"binary, {sizes.float_macs:,} float",
    ]


def _spec(config: RunConfig) -> "ModelSpec":
    from fedbnn_core.data.registry import DATASETS
    from fedbnn_core.methods import create_method

    if config.dataset in DATASETS:
        known = DATASETS[config.dataset]
        shape, classes = known.input_shape, known.num_classes
    else:
        from fedbnn_core.runs.dataset import load_run_dataset

        dataset = load_run_dataset(config)
        shape, classes = dataset.input_shape, dataset.num_classes
    method = create_method(config, shape, classes)
    if not method.binary:
        raise ConfigError(
            f"{config.method} trains a float network, and only 1-bit networks are "
            "exported for chips; choose method=fedbnn"
        )
    return method.spec


def _name(fit: "Fit") -> str:
    channels, height, width = fit.spec.input_shape
    of_width = f" of width {fit.spec.width}" if "resnet" in fit.spec.name else ""
    head = ", int8 head" if fit.int8_head else ""
    return f"{fit.spec.name}{of_width} for {height} x {width} x {channels} pixels{head}"


def _change(wanted: "ModelSpec", fit: "Fit") -> str:
    """Return a suggestion: what to change, and what that needs."""
    parts = []
    if fit.spec.width != wanted.width:
        parts.append(f"-c model-width={fit.spec.width}")
    if fit.spec.input_shape != wanted.input_shape:
        _, height, width = fit.spec.input_shape
        parts.append(f"images of {height} x {width}")
    if fit.int8_head:
        parts.append("--int8-head at export")
    return (
        f"{' with '.join(parts)} ({fit.sizes.ram_bytes:,} bytes of RAM, "
        f"{fit.sizes.flash_bytes:,} of flash)"
    )

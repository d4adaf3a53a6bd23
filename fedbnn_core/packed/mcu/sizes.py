"""What a network needs on a chip, known before anything is built."""

from dataclasses import dataclass

from fedbnn_core.errors import ConfigError
from fedbnn_core.packed.graph import Graph
from fedbnn_core.packed.mcu.plan import plan_network
from fedbnn_core.packed.mcu.source import network_tables
from fedbnn_core.packed.summary import macs

__all__ = ["ChipSizes", "chip_sizes", "parse_size"]

CODE_BYTES = 10 * 1024
"""Kernels, software floats, memcpy and memset: the most that any tested chip needs."""
STACK_BYTES = 1024
"""The most that any tested chip needs is about half of it."""

_LAYER_BYTES = 84
_NETWORK_BYTES = 64
_MODEL_BYTES = 8
_UNITS = {"": 1, "k": 1024, "m": 1024 * 1024}


@dataclass(frozen=True)
class ChipSizes:
    """Memory and work of a network on a 32-bit chip, without the other code."""

    network_bytes: int
    """Constants, in flash."""
    code_bytes: int
    """Upper bound of the kernels, in flash."""
    arena_bytes: int
    """Activations, in RAM."""
    stack_bytes: int
    """Upper bound, in RAM."""
    image_bytes: int
    """What the caller holds in RAM for one image."""
    binary_macs: int
    float_macs: int

    @property
    def flash_bytes(self) -> int:
        """Return the flash that network and kernels need."""
        return self.network_bytes + self.code_bytes

    @property
    def ram_bytes(self) -> int:
        """Return the RAM that arena, stack and one image need."""
        return self.arena_bytes + self.stack_bytes + self.image_bytes + _MODEL_BYTES

    def fits(self, *, ram: int | None, flash: int | None) -> bool:
        """Say whether a chip is large enough; None is no limit."""
        return (ram is None or self.ram_bytes <= ram) and (
            flash is None or self.flash_bytes <= flash
        )


def chip_sizes(graph: Graph) -> ChipSizes:
    """Return what a network needs, from the plan and the tables that are exported.

    Raises
    ------
    FedBNNError
        The network has an operation that chips are not given.
    """
    plan = plan_network(graph)
    tables, _ = network_tables(graph, plan)
    names = sum(len(name.encode()) + 1 + 4 for name in graph.class_names)
    height, width, channels = graph.input_shape
    binary, real = macs(graph)
    return ChipSizes(
        network_bytes=tables.size
        + len(plan.layers) * _LAYER_BYTES
        + _NETWORK_BYTES
        + _MODEL_BYTES
        + -(-names // 4) * 4,
        code_bytes=CODE_BYTES,
        arena_bytes=plan.arena_bytes,
        stack_bytes=STACK_BYTES,
        image_bytes=height * width * channels,
        binary_macs=binary,
        float_macs=real,
    )


def parse_size(text: str, option: str) -> int:
    """Return a size such as 64k, 1m or 65536 in bytes; k is 1024.

    Raises
    ------
    ConfigError
        It is none; the message names the option.
    """
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:] in ("k", "m") else ""
    digits = number.removesuffix(unit)
    if not digits.isdecimal() or int(digits) == 0:
        raise ConfigError(
            f"{option} is a size such as 64k, 1m or 65536 (k = 1024 bytes), "
            f"got {text!r}"
        )
    return int(digits) * _UNITS[unit]

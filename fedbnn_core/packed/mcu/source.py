"""Write a planned network as C: `network.c`, all constants and one static arena."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from fedbnn_core.packed.graph import Graph, Kind, Operation, present
from fedbnn_core.packed.mcu.plan import Buffer, Layer, Plan
from fedbnn_core.packed.reference import fma
from fedbnn_core.packed.summary import macs

__all__ = ["ConstantTables", "network_source", "network_tables", "pixel_limits"]

_LINE = 88
_NONE = "FBNN_NONE"


def pixel_limits(graph: Graph) -> npt.NDArray[np.uint16]:
    """Return for each channel the first pixel whose normalized value is >= 0.

    Normalization is a fused multiply-add with a positive factor: it never decreases.
    256 says that no pixel gets there.
    """
    pixels = np.arange(256, dtype=np.float32)[:, None]
    values = fma(
        np.repeat(pixels, len(graph.pixel_scale), axis=1),
        graph.pixel_scale,
        graph.pixel_shift,
    )
    return np.asarray(np.count_nonzero(values < 0, axis=0), np.uint16)


class ConstantTables:
    """The arrays of a network, for `network.c`."""

    def __init__(self) -> None:
        self._arrays: list[tuple[str, str, npt.NDArray[np.generic]]] = []

    @property
    def size(self) -> int:
        """Return their bytes; compilers may align bytes like words."""
        return sum(-(-values.nbytes // 4) * 4 for _, _, values in self._arrays)

    def add(self, name: str, ctype: str, values: npt.NDArray[np.generic]) -> str:
        """Define an array and return its name."""
        self._arrays.append((name, ctype, values.reshape(-1)))
        return name

    def optional(
        self, name: str, ctype: str, values: npt.NDArray[np.generic] | None
    ) -> str:
        """Define an array if there is one; return its name or NULL."""
        return "NULL" if values is None else self.add(name, ctype, values)

    def definitions(self) -> str:
        """Return the arrays in C."""
        return "\n".join(
            f"static const {ctype} {name}[{values.size}] = {{\n"
            f"{_wrap(_literal(value) for value in values.tolist())}}};\n"
            for name, ctype, values in self._arrays
        )


def network_tables(graph: Graph, plan: Plan) -> tuple[ConstantTables, list[str]]:
    """Return the arrays of a network and the C records of its layers."""
    tables = ConstantTables()
    tables.add("pixel_scale", "float", graph.pixel_scale)
    tables.add("pixel_shift", "float", graph.pixel_shift)
    tables.add("pixel_limits", "uint16_t", pixel_limits(graph))
    records = [_record(i, layer, tables) for i, layer in enumerate(plan.layers)]
    return tables, records


def network_source(graph: Graph, plan: Plan) -> str:
    """Return `network.c`."""
    tables, records = network_tables(graph, plan)
    height, width, channels = graph.input_shape
    return _TEMPLATE.format(
        architecture="".join(
            c for c in graph.architecture if c.isascii() and (c.isalnum() or c in "-_.")
        ),
        height=height,
        width=width,
        channels=channels,
        classes=len(graph.class_names),
        macs=min(sum(macs(graph)), 2**32 - 1),
        checks="\n".join(_check(buffer) for buffer in plan.buffers),
        tables=tables.definitions(),
        records="\n".join(records),
        count=len(records),
        names=",\n    ".join(_string(name) for name in graph.class_names),
        logits=plan.logits.offset,
    )


def _record(index: int, layer: Layer, tables: ConstantTables) -> str:
    op = layer.op
    prefix = f"layer{index}"
    flags = [
        name
        for name, on in (
            ("FBNN_CLAMP", op.clamp),
            ("FBNN_DEPTHWISE", op.depthwise),
            ("FBNN_IMAGE", layer.reads_image),
            ("FBNN_STREAM", layer.streams),
        )
        if on
    ]
    fields: dict[str, object] = {
        "kind": f"FBNN_{op.kind.name}",
        "flags": " | ".join(flags) or 0,
        "kernel_h": op.kernel[0],
        "kernel_w": op.kernel[1],
        "stride": op.stride,
        "pad_top": op.padding[0],
        "pad_left": op.padding[1],
        "in_h": layer.input[0],
        "in_w": layer.input[1],
        "in_c": layer.input[2],
        "out_h": layer.output[0],
        "out_w": layer.output[1],
        "out_c": layer.output[2],
        "in_rows": layer.in_rows,
        "out_rows": layer.out_rows,
        "weight_exponent": _weight_exponent(op),
        "fan_in": layer.fan_in,
        "input": _offset(layer.source),
        "residual": _offset(layer.residual),
        "out_float": _offset(layer.out_float),
        "out_bits": _offset(layer.out_bits),
        "scratch": _offset(layer.scratch),
        "weights": _weights(prefix, layer, tables),
        "weight_scale": tables.optional(f"{prefix}_unit", "float", op.weight_scale),
        "bias": tables.optional(f"{prefix}_bias", "float", op.bias),
        "gain": tables.optional(f"{prefix}_gain", "float", op.gain),
        "offset": tables.optional(f"{prefix}_offset", "float", op.offset),
        "scale": tables.optional(f"{prefix}_scale", "float", op.scale),
        "limits": "NULL",
        "flips": "NULL",
    }
    if op.thresholds is not None:
        # sum = n - 2 mismatches, so sum >= t says mismatches <= (n - t) / 2.
        limits = (layer.fan_in - op.thresholds.astype(np.int32)) // 2
        fields["limits"] = tables.add(
            f"{prefix}_limits", "int16_t", limits.astype(np.int16)
        )
        fields["flips"] = _bits(f"{prefix}_flips", present(op.flips), tables)
    if op.mask is not None:
        fields["flips"] = _bits(f"{prefix}_flips", op.mask, tables)
    parts = [f".{name} = {value}" for name, value in fields.items()]
    return "    {\n" + _wrap(parts, indent=8) + "    },"


def _weights(prefix: str, layer: Layer, tables: ConstantTables) -> str:
    op = layer.op
    name = f"{prefix}_weights"
    if op.kind is Kind.BCONV and op.depthwise:
        return tables.add(name, "uint8_t", present(op.bits))
    if op.kind is Kind.BCONV:
        rows = np.unpackbits(
            present(op.bits), count=op.out_channels * layer.fan_in, bitorder="little"
        ).reshape(op.out_channels, layer.fan_in)
        padded = np.pad(rows, ((0, 0), (0, -layer.fan_in % 32)))
        words = np.packbits(padded, axis=1, bitorder="little").view("<u4")
        return tables.add(name, "uint32_t", words)
    if op.weight is None:
        return "NULL"
    if op.kind is Kind.CONV:
        return tables.add(name, "float", op.weight.transpose(3, 0, 1, 2))
    small = op.weight.dtype == np.int8
    return tables.add(name, "int8_t" if small else "float", op.weight)


def _weight_exponent(op: Operation) -> int:
    """Return e of the largest weight, written as m * 2^e with 2^23 <= m < 2^24."""
    if op.weight is None:
        return 0
    weight = op.weight.astype(np.float32)
    if op.weight_scale is not None:
        weight = weight * op.weight_scale[:, None]
    return int(np.frexp(np.abs(weight).max())[1]) - 24


def _bits(name: str, flags: npt.NDArray[np.bool_], tables: ConstantTables) -> str:
    return tables.add(name, "uint8_t", np.packbits(flags, bitorder="little"))


def _offset(buffer: Buffer | None) -> object:
    return _NONE if buffer is None else buffer.offset


def _check(buffer: Buffer) -> str:
    return (
        f"_Static_assert({buffer.offset} + {buffer.size} <= FBNN_ARENA_BYTES, "
        f'"{buffer.name}");'
    )


def _literal(value: object) -> str:
    return f"{value.hex()}f" if isinstance(value, float) else str(value)


def _string(text: str) -> str:
    """Return a C string; anything but plain characters becomes an octal escape."""
    plain = set(range(0x20, 0x7F)) - set(b'"\\?')
    return (
        '"'
        + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode())
        + '"'
    )


def _wrap(words: Iterable[str], *, indent: int = 4) -> str:
    """Return words with commas, in lines of bounded length."""
    lines, line = [], " " * indent
    for word in words:
        if len(line) > indent and len(line) + len(word) + 2 > _LINE:
            lines.append(line.rstrip())
            line = " " * indent
        line += f"{word}, "
    lines.append(line.rstrip())
    return "\n".join(lines) + "\n"


_TEMPLATE = """\
/* A packed 1-bit {architecture}: {height} x {width} x {channels} bytes in, \
{classes} classes out. */
#include "fbnn.h"

{checks}

static union {{
    uint32_t words[FBNN_ARENA_BYTES / 4];
    float floats[FBNN_ARENA_BYTES / 4];
    uint8_t bytes[FBNN_ARENA_BYTES];
}} arena;
_Static_assert(sizeof arena == FBNN_ARENA_BYTES, "size of the export");

{tables}
static const fbnn_layer layers[{count}] = {{
{records}
}};

static const char *const class_names[{classes}] = {{
    {names}}};

static fbnn_model model = {{fbnn_model_data, arena.bytes}};

const fbnn_network fbnn_model_data[1] = {{{{
    FBNN_MAGIC,
    {{{height}, {width}, {channels}, {classes}, FBNN_ARENA_BYTES, {macs}u}},
    pixel_scale, pixel_shift, pixel_limits,
    layers, {count}, {logits},
    class_names, &model}}}};
const size_t fbnn_model_size = sizeof fbnn_model_data;
"""

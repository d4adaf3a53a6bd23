"""Assemble a graph from values; they share slots as soon as these are free."""

from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

from fedbnn_core.packed.graph import Kind, Operation

__all__ = ["GraphBuilder", "Value"]


class Value(NamedTuple):
    """An operation's result: the same numbers as floats and as signs."""

    floats: int
    bits: int


class GraphBuilder:
    """Collect operations; an output that nobody reads is never computed."""

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._numbers = count()

    def add(
        self,
        kind: Kind,
        out_channels: int,
        source: Value | None = None,
        *,
        residual: Value | None = None,
        **attributes: Any,
    ) -> Value:
        """Append an operation and return its result."""
        result = Value(next(self._numbers), next(self._numbers))
        op = Operation(
            kind,
            out_channels,
            residual=None if residual is None else residual.floats,
            out_float=result.floats,
            out_bits=result.bits,
            **attributes,
        )
        if source is not None:
            op.input = source.bits if op.reads_bits else source.floats
        if op.kind is Kind.BITPOOL or op.thresholds is not None:
            op.out_float = None
        self._operations.append(op)
        return result

    def finish(self, logits: Value) -> list[Operation]:
        """Return the operations with slots; ``logits`` is the network's result."""
        last_use = {logits.floats: len(self._operations)}
        for index, op in enumerate(self._operations):
            for value in (op.input, op.residual):
                if value is not None:
                    last_use[value] = index
        slots = _SlotAllocator()
        return [
            slots.assign(op, index, last_use)
            for index, op in enumerate(self._operations)
        ]


class _SlotAllocator:
    """Give every value a slot of its type until its last reader has run."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._free: dict[bool, list[int]] = {False: [], True: []}
        self._next = {False: count(), True: count()}

    def assign(self, op: Operation, index: int, last_use: dict[int, int]) -> Operation:
        placed = replace(
            op,
            input=None if op.input is None else self._held[op.input],
            residual=None if op.residual is None else self._held[op.residual],
        )
        # The output may replace its residual, but not its input.
        if op.residual is not None and last_use[op.residual] == index:
            self._release(op.residual, of_bits=False)
        placed.out_float = self._place(op.out_float, last_use, of_bits=False)
        placed.out_bits = self._place(op.out_bits, last_use, of_bits=True)
        if op.input is not None and last_use[op.input] == index:
            self._release(op.input, of_bits=op.reads_bits)
        return placed

    def _place(
        self, value: int | None, last_use: dict[int, int], *, of_bits: bool
    ) -> int | None:
        if value is None or value not in last_use:
            return None
        free = self._free[of_bits]
        slot = free.pop() if free else next(self._next[of_bits])
        self._held[value] = slot
        return slot

    def _release(self, value: int, *, of_bits: bool) -> None:
        if value in self._held:
            self._free[of_bits].append(self._held.pop(value))

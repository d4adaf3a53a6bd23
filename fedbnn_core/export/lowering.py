"""Turn the calls of a network into packed operations, or say why that is impossible."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from torch import fx, nn

from fedbnn_core.binary.layer import RotatedBinaryConv2d
from fedbnn_core.errors import ExportError
from fedbnn_core.export.folding import Draft, Pool, Step, emit
from fedbnn_core.export.trace import Traced
from fedbnn_core.packed.builder import GraphBuilder, Value
from fedbnn_core.packed.graph import Kind

__all__ = ["Lowering", "Packer", "PackingError", "describe"]

Packer = Callable[..., Draft]
"""Takes the `Lowering`, the module if it is one, and the call's arguments."""


class PackingError(Exception):
    """A call has no packed form; the message is the reason."""


class Lowering:
    """One walk through a traced network.

    Parameters
    ----------
    traced : the network.
    find : returns the packer of a call, or raises `PackingError`.
    transparent : says whether a call hands its input on as it is.
    """

    shape: tuple[int, ...]
    """Of the current call's result, batch included; () if it is no tensor."""

    def __init__(
        self,
        traced: Traced,
        find: Callable[[Traced, fx.Node], Packer],
        transparent: Callable[[nn.Module | None], bool],
    ) -> None:
        self._traced, self._find, self._transparent = traced, find, transparent
        self.builder = GraphBuilder()
        self.problems: list[str] = []

    def run(self, *, int8_head: bool = False) -> Value:
        """Return the logits; the operations are in ``builder``."""
        drafts: dict[fx.Node, Draft] = {}
        logits: Draft | None = None
        for node in self._traced.nodes:
            if node.op == "output":
                logits = self._logits(node, drafts)
            elif node in self._traced.shapes:
                known = set(map(id, drafts.values()))
                draft = drafts[node] = self._lower(node, drafts)
                if id(draft) not in known:
                    draft.bits_only = all(map(self._reads_bits, self._readers(node)))
                draft.shared |= len(node.users) > 1
        if self.problems or logits is None:
            raise ExportError(self.problems)
        if int8_head:
            _quantize_head(logits)
        return self.emit(logits)

    def emit(self, draft: Draft) -> Value:
        """Write what a draft still lacks and return its result."""
        if "zeros around" in draft.fields:
            raise PackingError("zeros around an image count in float convolutions only")
        return emit(self.builder, draft)

    def draft(self, kind: Kind, channels: int, source: Draft, **fields: Any) -> Draft:
        """Return the draft of a layer that reads ``source``."""
        return Draft(
            (channels, *self._pixels()), kind, self.emit(source), fields=fields
        )

    def extend(self, draft: Draft, step: Step | Pool) -> Draft:
        """Return a draft with one more step."""
        shape = (draft.shape[0], *self._pixels()) if len(self.shape) == 4 else None
        if draft.shared or draft.value is not None:
            draft = Draft(draft.shape, None, self.emit(draft))
        return replace(draft, shape=shape or draft.shape, steps=(*draft.steps, step))

    def _pixels(self) -> tuple[int, int]:
        return (self.shape[2], self.shape[3]) if len(self.shape) == 4 else (1, 1)

    def _lower(self, node: fx.Node, drafts: dict[fx.Node, Draft]) -> Draft:
        self.shape = self._traced.shapes[node]
        if node.op == "placeholder":
            channels, height, width = self.shape[1:]
            image = self.builder.add(Kind.INPUT, channels)
            return Draft((channels, height, width), None, image, value=image)

        def argument(of: fx.Node) -> Any:
            return drafts[of] if of in drafts else self._traced.constants[of]

        try:
            if node in self._traced.spoiled:
                raise PackingError("it overwrites what another call reads")
            packer = self._find(self._traced, node)
            args = fx.map_arg(node.args, argument)
            kwargs = fx.map_arg(node.kwargs, argument)
            _check_arguments(packer, self, args, kwargs)
            return packer(self, *args, **kwargs)
        except PackingError as reason:
            self.problems.append(f"{describe(self._traced, node)}: {reason}")
            # Go on, so that all problems are found at once.
            channels = self.shape[1] if len(self.shape) > 1 else 1
            unknown = Value(-1, -1)
            return Draft((channels, *self._pixels()), None, unknown, value=unknown)

    def _logits(self, node: fx.Node, drafts: dict[fx.Node, Draft]) -> Draft | None:
        (result,) = node.args
        if (
            isinstance(result, fx.Node)
            and len(self._traced.shapes.get(result, ())) == 2
            and drafts[result].shape[1:] == (1, 1)
        ):
            return drafts[result]
        self.problems.append(
            "output: it must be one tensor of logits (images, classes), flattened"
        )
        return None

    def _readers(self, node: fx.Node) -> Iterator[fx.Node]:
        """Yield the calls that read a result, through those that hand it on."""
        for user in node.users:
            if user.op == "call_module" and self._transparent(
                self._traced.module(user)
            ):
                yield from self._readers(user)
            else:
                yield user

    def _reads_bits(self, node: fx.Node) -> bool:
        return isinstance(self._traced.module(node), RotatedBinaryConv2d)


def describe(traced: Traced, node: fx.Node) -> str:
    """Name a call for people: the layer and its type, or the function and where."""
    module = traced.module(node)
    if module is not None:
        return f"{node.target} ({type(module).__name__})"
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", target)
    stack = node.meta.get("nn_module_stack") or {}
    place = next(iter(reversed(stack)), "") or "the network's forward"
    return f"{name}() in {place}"


def _check_arguments(
    packer: Packer, low: Lowering, args: Any, kwargs: dict[str, Any]
) -> None:
    if not any(isinstance(arg, Draft) for arg in (*args, *kwargs.values())):
        raise PackingError("it does not read the image or a layer's result")
    try:
        inspect.signature(packer).bind(low, *args, **kwargs)
    except TypeError:
        raise PackingError(
            "it is called with arguments that have no packed form"
        ) from (None)


def _quantize_head(logits: Draft) -> None:
    """Store a classifier's weights as int8 with one scale per class."""
    if logits.kind is not Kind.LINEAR or logits.steps:
        raise ExportError(
            ["output: an int8 head needs a linear layer as the network's last one"]
        )
    weight = logits.fields["weight"]
    # A row of zeros may have any scale; 1 keeps the division defined.
    largest = np.abs(weight).max(axis=1)
    scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    logits.fields["weight"] = np.rint(weight / scale[:, None]).astype(np.int8)
    logits.fields["weight_scale"] = scale

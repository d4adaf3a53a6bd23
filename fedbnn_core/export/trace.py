"""Record what a network computes: its calls, their shapes and its constants."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from fedbnn_core.binary.layer import RotatedBinaryConv2d

__all__ = ["Traced", "trace"]

_BATCH = 2
"""Of the images that are run through the network: one could hide a mixed-up batch."""


@dataclass(frozen=True)
class Traced:
    """A network as a list of calls."""

    nodes: list[fx.Node]
    modules: dict[str, nn.Module]
    shapes: dict[fx.Node, tuple[int, ...]]
    """Of every tensor that depends on the image, batch included."""
    constants: dict[fx.Node, Any]
    """Every value that does not, and sizes."""
    spoiled: set[fx.Node]
    """Calls that overwrite what a later call reads."""

    def module(self, node: fx.Node) -> nn.Module | None:
        """Return the module that a node calls."""
        if node.op != "call_module":
            return None
        return self.modules[str(node.target)]


class _Tracer(fx.Tracer):
    def __init__(
        self,
        is_leaf: Callable[[nn.Module], bool],
        functions: Sequence[Callable[..., Any]],
    ) -> None:
        super().__init__(autowrap_functions=tuple(functions))
        self._is_leaf = is_leaf

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self._is_leaf(m) or super().is_leaf_module(m, module_qualified_name)


class _Recorder(fx.Interpreter):
    """Run the calls and keep shapes and constants."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        super().__init__(model, graph=graph)
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}
        self.constants: dict[fx.Node, Any] = {}

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call a layer; of a binary one, which takes long, only the shape counts."""
        module = self.fetch_attr(target)
        if isinstance(module, RotatedBinaryConv2d) and isinstance(args[0], Tensor):
            return _binary_result(module, args[0])
        return super().call_module(target, args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        of_image = n.op == "placeholder" or any(
            source in self.shapes for source in n.all_input_nodes
        )
        if of_image and isinstance(result, Tensor):
            self.shapes[n] = tuple(result.shape)
        elif n.op != "output":
            self.constants[n] = result
        return result


def _binary_result(conv: RotatedBinaryConv2d, x: Tensor) -> Tensor:
    """Return zeros of the shape that a binary convolution yields."""
    if x.ndim != 4 or x.shape[1] != conv.in_channels:
        raise ValueError(
            f"{conv.in_channels} channels expected, got a tensor {tuple(x.shape)}"
        )
    sides = (
        (side + 2 * conv.padding - conv.kernel_size) // conv.stride + 1
        for side in x.shape[2:]
    )
    return x.new_zeros(len(x), conv.out_channels, *sides)


def _changes_in_place(node: fx.Node, model: nn.Module) -> bool:
    """Say whether a call overwrites what it reads."""
    if node.op == "call_method":
        return str(node.target).endswith("_")
    if node.op == "call_module":
        return bool(getattr(model.get_submodule(str(node.target)), "inplace", False))
    in_place = node.target in (operator.iadd, operator.imul)
    return in_place or bool(node.kwargs.get("inplace", False))


@torch.no_grad()
def trace(
    model: nn.Module,
    input_shape: tuple[int, int, int],
    *,
    is_leaf: Callable[[nn.Module], bool],
    functions: Sequence[Callable[..., Any]],
) -> Traced:
    """Return the calls of a network for images of (channels, height, width).

    Parameters
    ----------
    model : in evaluation mode.
    input_shape : of one image.
    is_leaf : says whether a module is looked at as a whole.
    functions : looked at as a whole, beside those of torch.

    Raises
    ------
    Exception
        Whatever torch.fx or the network raises.
    """
    graph = _Tracer(is_leaf, functions).trace(model)
    for node in reversed(graph.nodes):
        ends = node.op in ("placeholder", "output")
        if not ends and not node.users and not _changes_in_place(node, model):
            graph.erase_node(node)
    recorder = _Recorder(model, graph)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    recorder.run(torch.zeros(_BATCH, *input_shape, device=device))
    return Traced(
        list(graph.nodes),
        dict(model.named_modules(remove_duplicate=False)),
        recorder.shapes,
        recorder.constants,
        {node for node in graph.nodes if _spoils(node, model)},
    )


def _spoils(node: fx.Node, model: nn.Module) -> bool:
    return _changes_in_place(node, model) and any(
        not node.users or node < user for x in node.all_input_nodes for user in x.users
    )

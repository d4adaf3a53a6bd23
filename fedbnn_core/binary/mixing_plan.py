"""Layers of a network stacked by the shape of their weights, for `batched_mixing`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbnn_core.binary.mixing import STD_EPS

__all__ = ["LayerStack", "MixingPlan", "plan_mixing", "stacked"]


@dataclass(frozen=True)
class LayerStack:
    """What layers with weights of one shape do not train, stacked."""

    layers: slice
    """Which layers of the plan they are."""
    rows: slice
    """Which filters of all filters of the plan are theirs."""
    weights: slice
    """Which weights of all weights of the plan are theirs."""
    kernel: tuple[int, int, int]
    """Input channels, height and width of a filter."""
    w_server: Tensor
    """(layers, filters, n), as ``z_server``."""
    z_server: Tensor
    r1: Tensor
    """(layers, n1, n1)."""
    r2: Tensor
    """(layers, n2, n2)."""

    def of_layers(self, values: Tensor) -> Tensor:
        """Return these layers' part of one value a layer, to multiply weights with."""
        return values[self.layers].view(-1, 1, 1)

    def of_rows(self, values: Tensor) -> Tensor:
        """Return these filters' part of one value a filter, to multiply with."""
        return values[self.rows].view(*self.w_server.shape[:2], 1)

    def of_weights(self, values: Tensor) -> Tensor:
        """Return these layers' weights of all weights, (layers, filters, n)."""
        return values[self.weights].view(self.w_server.shape)

    def channels_last(self, values: Tensor) -> Tensor:
        """Return these layers' weights of all, as (filters, height, width, channels).

        They are stored in that order.
        """
        channels, height, width = self.kernel
        return values[self.weights].view(-1, height, width, channels)

    def rotate(self, z: Tensor) -> Tensor:
        """Return R1^T Z R2 of every filter, Eq. 4."""
        return self._turn(z, self.r1.mT, self.r2)

    def rotate_back(self, g: Tensor) -> Tensor:
        """Return R1 G R2^T of every filter."""
        return self._turn(g, self.r1, self.r2.mT)

    def _turn(self, x: Tensor, left: Tensor, right: Tensor) -> Tensor:
        layers, filters = x.shape[:2]
        n1, n2 = left.shape[1], right.shape[1]
        half = torch.bmm(x.view(layers, filters * n1, n2), right)
        each = left[:, None].expand(layers, filters, n1, n1).reshape(-1, n1, n1)
        return torch.bmm(each, half.view(-1, n1, n2)).view(x.shape)


@dataclass(frozen=True)
class MixingPlan:
    """The stacks of some layers, and constants of their filters.

    Layers are ordered stack by stack.
    """

    stacks: list[LayerStack]
    server_alignment: bool
    layer_of_row: Tensor
    """Each filter's layer, int64."""
    membership: Tensor
    """(filters, layers), 1 where a filter is the layer's: sums filters by layer."""
    unbiased: Tensor
    """sqrt(n / (n-1)) of each filter: from the biased to the unbiased deviation."""
    eps_share: Tensor
    """STD_EPS / n of each filter."""
    zeros: Tensor
    """A zero for each filter."""


def plan_mixing(
    buffers: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]], *, server_alignment: bool
) -> MixingPlan:
    """Stack what layers do not train: (w_server, z_server, R1, R2) of each.

    Layers with weights of one shape must stand side by side, with at least two weights
    in a filter.
    """
    stacks, sizes = [], []
    first = row = weight = 0
    while first < len(buffers):
        shape = buffers[first][0].shape
        last = first + 1
        while last < len(buffers) and buffers[last][0].shape == shape:
            last += 1
        filters, n = shape[0] * (last - first), shape[1:].numel()
        w_server, z_server, r1, r2 = (
            stacked(part) for part in zip(*buffers[first:last], strict=True)
        )
        stacks.append(
            LayerStack(
                layers=slice(first, last),
                rows=slice(row, row + filters),
                weights=slice(weight, weight + filters * n),
                kernel=(shape[1], shape[2], shape[3]),
                w_server=w_server.reshape(last - first, shape[0], n),
                z_server=z_server.reshape(last - first, shape[0], n),
                r1=r1,
                r2=r2,
            )
        )
        sizes += [(shape[0], n)] * (last - first)
        first, row, weight = last, row + filters, weight + filters * n
    return _with_constants(stacks, sizes, buffers[0][0], server_alignment)


def _with_constants(
    stacks: list[LayerStack],
    sizes: list[tuple[int, int]],
    like: Tensor,
    server_alignment: bool,
) -> MixingPlan:
    """Return the plan of stacks whose layers have so many (filters, weights each)."""
    filters = torch.tensor([count for count, _ in sizes])
    n = torch.tensor([n for _, n in sizes], dtype=torch.float64)
    layer = torch.repeat_interleave(torch.arange(len(sizes)), filters)
    n = n[layer]

    def there(values: Tensor) -> Tensor:
        return values.to(like.dtype).to(like.device)

    return MixingPlan(
        stacks=stacks,
        server_alignment=server_alignment,
        layer_of_row=layer.to(like.device),
        membership=there(torch.nn.functional.one_hot(layer, len(sizes))),
        unbiased=there((n / (n - 1)).sqrt()),
        eps_share=there(STD_EPS / n),
        zeros=there(torch.zeros_like(n)),
    )


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors of one shape as one; a single one is not copied."""
    return parts[0][None] if len(parts) == 1 else torch.stack(list(parts))

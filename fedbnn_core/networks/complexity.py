"""What a network costs: parameters, FLOPs, memory and the overhead of rotations.

Everything is counted on the real modules, traced without data on torch's meta device.
The paper's rules and the honest values stand side by side:

- R1  FLOPs: 2 * (c_i/groups) * k^2 * c_o * H * W summed over convolutions, only them.
- R2  FedBNN FLOPs: float convolutions in full, binary ones divided by 58.
- R3  memory: 4 bytes times P, the trained conv, linear and norm numbers; FedBNN's
  is the same / 32, although head, stem and norms stay float. The honest value
  takes 1 bit for a binary weight and 4 bytes for every other number.
- R4  w: weights of the binary convolutions.
- R5  R: n1^2 + n2^2 summed over the binary convolutions.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedbnn_core.binary.layer import RotatedBinaryConv2d
from fedbnn_core.binary.model import binary_layers, deployed
from fedbnn_core.errors import ConfigError
from fedbnn_core.networks import ModelSpec, build_model

__all__ = [
    "INPUTS",
    "ROWS",
    "Complexity",
    "ModelSizes",
    "complexity_of",
    "matched_width",
    "model_sizes",
    "spec_for",
]

BINARY_SPEED_UP = 58
"""By how much the paper divides the FLOPs of a binary convolution."""

INPUTS: dict[str, tuple[tuple[int, int, int], int]] = {
    "fmnist": ((1, 28, 28), 10),
    "svhn": ((3, 32, 32), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "tiny-imagenet": ((3, 64, 64), 200),
    "femnist": ((3, 28, 28), 62),
}
"""Input shape and classes of the paper's datasets; FEMNIST's grey is replicated."""

ROWS = (
    ("cnn4", "fmnist"),
    ("cnn4", "svhn"),
    ("resnet10", "cifar10"),
    ("resnet18", "tiny-imagenet"),
    ("resnet18", "femnist"),
    ("convnext-tiny", "cifar10"),
)
"""The (model, dataset) pairs of the paper's tables."""

# What a binary layer trains beyond its float twin. No memory rule counts any of it;
# of a deployed model only the scale is left.
_SCALARS = ("omega", "theta", "gamma")
_FEDBNN_ONLY = (*_SCALARS, "scale")


@dataclass(frozen=True)
class Complexity:
    """Counts of one network as 1-bit net and as float twin."""

    w_params: int
    """Weights of the binary convolutions (R4)."""
    r_params: int
    """Numbers in all R1 and R2 (R5)."""
    total_params: int
    """P: trained numbers without the scalars, scales and rotations (R3)."""
    flops_real: int
    """Convolutions of the float twin (R1)."""
    flops_float_convs: int
    """Convolutions that the 1-bit net leaves in float."""
    flops_head: int
    """Linear layers, 2 per weight; the paper counts none."""

    @property
    def overhead_percent(self) -> float:
        """Return 100 * R / w: what the rotations add to an upload."""
        return 100.0 * self.r_params / self.w_params if self.w_params else 0.0

    @property
    def binary_ops(self) -> int:
        """Return the operations on single bits, two per binary multiply-add."""
        return self.flops_real - self.flops_float_convs

    @property
    def flops_fedbnn_paper(self) -> float:
        """Return float convolutions + binary ones / 58 (R2)."""
        return self.flops_float_convs + self.binary_ops / BINARY_SPEED_UP

    @property
    def flops_left(self) -> int:
        """Return the float operations that really remain: stem and head."""
        return self.flops_float_convs + self.flops_head

    @property
    def memory_real_mb(self) -> float:
        """Return 4 P / 10^6 (R3)."""
        return 4.0 * self.total_params / 1e6

    @property
    def memory_fedbnn_paper_mb(self) -> float:
        """Return memory_real_mb / 32 (R3): optimistic, as if all were binary."""
        return self.memory_real_mb / 32.0

    @property
    def memory_fedbnn_honest_mb(self) -> float:
        """Return 1 bit per binary weight and 4 bytes for all else of P."""
        others = self.total_params - self.w_params
        return (self.w_params / 8.0 + 4.0 * others) / 1e6


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of one model's state."""

    float32_bytes: int
    """What FedAvg ships of the float twin: weights, norms, running statistics."""
    one_bit_bytes: int
    """Binary weights at 1 bit, all other numbers that inference needs at 4 bytes."""
    binary_weights: int
    """Weights stored as single bits."""

    @property
    def ratio(self) -> float:
        """Return how many times smaller the 1-bit model is."""
        return self.float32_bytes / self.one_bit_bytes


def spec_for(model: str, dataset: str) -> ModelSpec:
    """Return the model's spec for one of the paper's datasets."""
    if dataset not in INPUTS:
        raise ConfigError(
            f"no input shape is known for dataset {dataset!r}; "
            f"choose one of {', '.join(INPUTS)}"
        )
    input_shape, num_classes = INPUTS[dataset]
    return ModelSpec(model, input_shape, num_classes)


def complexity_of(spec: ModelSpec) -> Complexity:
    """Count a network; both twins have the same structure, so ``binary`` is ignored."""
    with torch.device("meta"):
        model = build_model(replace(spec, binary=True))
    layers = binary_layers(model)
    uncounted = {f"{name}.{extra}" for name in layers for extra in _FEDBNN_ONLY}
    flops = _flops(deployed(model), spec.input_shape)
    return Complexity(
        w_params=sum(layer.weight.numel() for layer in layers.values()),
        r_params=sum(r.numel() for layer in layers.values() for r in layer.rotation),
        total_params=sum(
            parameter.numel()
            for name, parameter in model.named_parameters()
            if name not in uncounted
        ),
        flops_real=flops[nn.Conv2d] + flops[RotatedBinaryConv2d],
        flops_float_convs=flops[nn.Conv2d],
        flops_head=flops[nn.Linear],
    )


def _flops(
    model: nn.Module, input_shape: tuple[int, int, int]
) -> dict[type[nn.Module], int]:
    """Return 2 * multiply-adds for one image, by kind of layer.

    A layer uses each of its weights once per output position: H*W times in a
    convolution, once in a linear layer.
    """
    kinds = (nn.Conv2d, RotatedBinaryConv2d, nn.Linear)
    flops: dict[type[nn.Module], int] = dict.fromkeys(kinds, 0)

    def count(layer: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        uses = output[0, 0].numel()
        kind = next(kind for kind in kinds if isinstance(layer, kind))
        flops[kind] += 2 * layer.get_parameter("weight").numel() * uses

    for module in model.modules():
        if isinstance(module, kinds):
            module.register_forward_hook(count)
    with torch.no_grad():
        model.eval()(torch.empty(1, *input_shape, device="meta"))
    return flops


def matched_width(spec: ModelSpec, *, by: str) -> int:
    """Return the width whose float ResNet costs most nearly what the 1-bit net does.

    These are the paper's width-reduced FedAvg baselines: float nets of equal cost.

    Parameters
    ----------
    spec : the 1-bit ResNet to match.
    by : "flops" or "memory", both by the paper's rules.
    """
    if not spec.name.startswith("resnet"):
        raise ConfigError(
            f"only the resnets have a width to reduce, got {spec.name!r}; "
            "choose resnet10 or resnet18"
        )
    if by not in ("flops", "memory"):
        raise ConfigError(f"widths are matched by 'flops' or 'memory', got {by!r}")
    full = complexity_of(spec)
    budget = full.flops_fedbnn_paper if by == "flops" else full.memory_fedbnn_paper_mb

    def cost(width: int) -> float:
        reduced = complexity_of(replace(spec, width=width))
        return reduced.flops_real if by == "flops" else reduced.memory_real_mb

    low, high = 1, spec.width
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) <= budget else (low, middle)
    return min((low, high), key=lambda width: abs(cost(width) - budget))


def model_sizes(model: nn.Module) -> ModelSizes:
    """Return the sizes of a binary net's state (or a float twin's) in bytes.

    ``num_batches_tracked`` travels with FedAvg's state but inference needs none.
    Bits are padded to whole bytes per layer.
    """
    layers = binary_layers(model)
    bits = {f"{name}.weight": layer.weight.numel() for name, layer in layers.items()}
    training_only = {f"{name}.{scalar}" for name in layers for scalar in _SCALARS}
    scales = {f"{name}.scale" for name in layers}
    float32_bytes = one_bit_bytes = 0
    for name, value in model.state_dict().items():
        if name in training_only:
            continue
        if name not in scales:
            float32_bytes += value.numel() * value.element_size()
        if name in bits:
            one_bit_bytes += (value.numel() + 7) // 8
        elif value.is_floating_point():
            one_bit_bytes += 4 * value.numel()
    return ModelSizes(float32_bytes, one_bit_bytes, sum(bits.values()))

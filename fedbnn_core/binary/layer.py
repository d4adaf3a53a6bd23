"""The rotated binary convolution."""

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbnn_core.binary.conv_shape import ConvShape
from fedbnn_core.binary.diagnostics import LayerDiagnostics
from fedbnn_core.binary.integer_conv import Surrogate, convolve_signs
from fedbnn_core.binary.memory_layout import channels_last, subsample
from fedbnn_core.binary.mixing import (
    angle_share,
    angle_shares,
    client_share,
    fused_weight,
    mixed_sign,
    standardize_filters,
)
from fedbnn_core.binary.native_mixing import native_mixed_sign, takes
from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.binary.rotation import (
    Rotation,
    common_start,
    learn_rotation,
    round_start,
)
from fedbnn_core.binary.rounding import Key, step_key
from fedbnn_core.binary.surrogate import (
    AnySharpness,
    CompiledSharpness,
    Sharpness,
    activation_sign,
    sign,
    standardize_samples,
)

__all__ = ["RotatedBinaryConv2d"]


class RotatedBinaryConv2d(nn.Module):
    """Convolve sign(a) with sign(w~) (METHOD.md).

    Trainable: ``weight``, the scalars ``omega``, ``theta``, ``gamma`` with
    lambda = sigmoid(omega), alpha = |sin theta|, beta = |sin gamma|, and optionally
    ``bias`` and a ``scale`` s per output channel. A BN right behind the layer cancels
    s, so networks leave it out there. R1, R2 and the broadcast weights are buffers that
    are not part of the state dict: they belong to one round of one client.

    The state dict of a layer marked by `deployed` holds w~ itself in ``weight`` and
    the forward pass uses its plain sign.
    """

    omega: nn.Parameter
    theta: nn.Parameter
    gamma: nn.Parameter
    r1: Tensor
    r2: Tensor
    w_server: Tensor
    z_server: Tensor
    t: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        bias: bool = False,
        scale: bool = False,
        clamp: bool = True,
        norm_follows: bool = False,
        options: BinaryOptions | None = None,
    ) -> None:
        """Create the layer.

        Parameters
        ----------
        in_channels, out_channels, kernel_size, stride, padding, groups, bias :
            as for `torch.nn.Conv2d`, with square kernels; padded taps are +1.
        scale : train one factor s per output channel.
        clamp : a hardtanh precedes the sign (it masks the gradient).
        norm_follows : a batch norm follows, with nothing but pooling in between. In
            training it takes a channel's constant out again, so the gradient of the
            constant that padding adds is zero and is not computed. Where no batch
            norm follows, or one with frozen statistics, leave this False.
        options : how the layer is trained.
        """
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.groups, self.clamp = groups, clamp
        self.norm_follows = norm_follows
        self.options = options or BinaryOptions()
        self.sharpness = Sharpness(1.0)
        self._clock_missing = True
        self.is_deployed = False
        self._rounding, self._steps = 0, 0
        # sign(w~) of the coming forward pass, where `sign_batch` has computed it.
        self.ready_sign: Tensor | None = None

        shape = (out_channels, in_channels // groups, kernel_size, kernel_size)
        self.weight = nn.Parameter(torch.empty(shape))
        self.options.draw(self.weight)
        # Not pi/2 or 0: there the derivative of |sin| vanishes and nothing moves.
        self.theta = nn.Parameter(torch.tensor(math.pi / 4))
        self.gamma = nn.Parameter(torch.tensor(math.pi / 4))
        self.omega = nn.Parameter(torch.tensor(self.options.omega_start))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.scale = nn.Parameter(torch.ones(out_channels)) if scale else None

        r1, r2 = common_start(self.weights_per_filter)
        for name, value in (
            ("r1", r1),
            ("r2", r2),
            ("w_server", torch.zeros(shape)),
            ("z_server", torch.zeros(shape)),
            ("t", torch.ones(())),
        ):
            self.register_buffer(name, value, persistent=False)
        self.begin_round()

    @property
    def weights_per_filter(self) -> int:
        """Return n = (c_i / groups) * k * k."""
        return self.weight[0].numel()

    @property
    def rotation(self) -> Rotation:
        """Return the current (R1, R2)."""
        return self.r1, self.r2

    def lam(self) -> Tensor:
        """Return lambda = sigmoid(omega), the client's share of the fused weight."""
        if not self.options.server_alignment:
            return torch.ones_like(self.omega)
        return client_share(self.omega)

    def alpha(self) -> Tensor:
        """Return alpha = |sin theta|."""
        return angle_share(self.theta)

    def beta(self) -> Tensor:
        """Return beta = |sin gamma|."""
        if not self.options.server_alignment:
            return torch.ones_like(self.gamma)
        return angle_share(self.gamma)

    @torch.no_grad()
    def begin_round(self) -> None:
        """Freeze the broadcast weights as w_server and restart R."""
        self.w_server.copy_(self.weight)
        self.z_server.copy_(standardize_filters(self.w_server))
        options, native = self.options, self.has_integer_gradients
        seed = (options.seed, *self.weight.shape)
        start = options.rotation_start
        self.turn(round_start(self.z_server, start=start, seed=seed, native=native))

    @torch.no_grad()
    def begin_epoch(self, sharpness: Sharpness, *, rounding: int = 0) -> None:
        """Set the surrogate's sharpness and learn R on the current fused weights.

        ``rounding`` fixes how this epoch's gradients are rounded (`epoch_key`).
        """
        self.set_clock(sharpness, rounding=rounding)
        if self.weights_per_filter > 1:  # else there is nothing to rotate
            iterations = self.options.rotation_iterations
            native = self.has_integer_gradients
            layer = (self.standardized(), self.rotation)
            self.turn(learn_rotation(*layer, iterations=iterations, native=native))

    def set_clock(self, sharpness: Sharpness, *, rounding: int = 0) -> None:
        """Do what `begin_epoch` does but for the rotation."""
        self.sharpness = sharpness
        self.t.fill_(sharpness.t)
        self._clock_missing = False
        self._rounding, self._steps = rounding, 0

    @torch.no_grad()
    def standardized(self) -> Tensor:
        """Return std of the fused weights, on which R is learned."""
        return standardize_filters(fused_weight(self.weight, self.w_server, self.lam()))

    @torch.no_grad()
    def turn(self, rotation: Rotation) -> None:
        """Take over a learned R."""
        self.r1.copy_(rotation[0])
        self.r2.copy_(rotation[1])

    def binary_weight(self) -> Tensor:
        """Return sign(w~), differentiable by the surrogate unless deployed."""
        if self.is_deployed:
            return channels_last(sign(self.weight))
        if self.ready_sign is not None:
            ready, self.ready_sign = self.ready_sign, None
            return ready
        if self.options.server_alignment:
            alpha, beta = angle_shares(self.theta, self.gamma)
        else:
            alpha, beta = self.alpha(), self.beta()
        native = self.in_integers and takes(self.weight)
        mix = native_mixed_sign if native else mixed_sign
        return mix(
            self.weight,
            lam=self.lam(),
            alpha=alpha,
            beta=beta,
            w_server=self.w_server,
            z_server=self.z_server,
            rotation=self.rotation,
            sharpness=self._clock,
        )

    @property
    def _clock(self) -> AnySharpness:
        """Return the sharpness: a tensor in compiled steps, which outlive an epoch."""
        if torch.compiler.is_compiling():
            return CompiledSharpness(self.t)
        return self.sharpness

    @property
    def has_integer_gradients(self) -> bool:
        """Return whether gradients are rounded to a few bits in training."""
        return self.options.bits_for(self.weight) < 32

    @property
    def in_integers(self) -> bool:
        """Return whether the layer trains, with gradients rounded to a few bits."""
        return self.training and self.has_integer_gradients

    def prepare(self, x: Tensor) -> tuple[Tensor, ConvShape]:
        """Return the values whose signs are convolved, and the convolution."""
        if self._clock_missing and self.training and torch.is_grad_enabled():
            self._warn_of_missing_clock()
        if self.options.activation == "per-sample":
            x = standardize_samples(x)
        stride = self.stride
        if self.kernel_size == 1 and self.padding == 0:
            # Only every stride-th pixel counts, so only their signs are taken. (Left
            # to itself, oneDNN's AVX2 kernel for this writes beyond its buffers where
            # there are fewer than eight channels: torch 2.13, memory corrupted.)
            x, stride = subsample(x, stride), 1
        shape = ConvShape.of(
            x, self.weight, stride=stride, padding=self.padding, groups=self.groups
        )
        return x, shape

    def surrogate(self) -> Surrogate:
        """Return the gradient of this layer's activation sign."""
        return Surrogate(*self.sharpness.activation, 1.0 if self.clamp else math.inf)

    def next_key(self) -> Key:
        """Return the random numbers' key of the next training step."""
        key = step_key(self._rounding, self._steps)
        self._steps += 1
        return key

    def forward(self, x: Tensor) -> Tensor:
        """Return conv(sign(x), sign(w~)) * s + bias, Eq. 2; padded taps are +1."""
        x, shape = self.prepare(x)
        weight = self.binary_weight()
        if self.in_integers:
            bits = self.options.bits_for(self.weight)
            out = convolve_signs(
                x, weight, shape, self.surrogate(), bits=bits, key=self.next_key()
            )
        else:
            out = self._in_floats(x, weight, shape)
        if self.scale is not None:
            out = out * self.scale[:, None, None]
        return out if self.bias is None else out + self.bias[:, None, None]

    def _in_floats(self, x: Tensor, weight: Tensor, shape: ConvShape) -> Tensor:
        # One-padding without a padded copy: with a' = a - 1 the padded taps are 0,
        # and conv(a, w) = conv(a', w) + sum(w). All values stay exact integers.
        shift = 1.0 if shape.padding > 0 else 0.0
        a = activation_sign(x, sharpness=self._clock, clamp=self.clamp, shift=shift)
        offset = weight.sum(dim=(1, 2, 3)) if shift else None
        if offset is not None and self.norm_follows:
            offset = offset.detach()
        return F.conv2d(
            a,
            weight,
            offset,
            stride=shape.stride,
            padding=shape.padding,
            groups=shape.groups,
        )

    def _warn_of_missing_clock(self) -> None:
        """Say once that training goes on without sharpness schedule and rotations."""
        if self.is_deployed:
            return
        self._clock_missing = False
        warnings.warn(
            "a binary layer is trained without its clock: t stays 1 and its rotation "
            "is never learned. Call begin_round(model) before the first epoch and "
            "begin_epoch(model, Sharpness.at(...)) before each epoch.",
            stacklevel=4,
        )

    @torch.no_grad()
    def diagnostics(self) -> LayerDiagnostics:
        """Return alpha, beta, lambda and the angular bias cos(phi) of rot(std(w))."""
        scalars = {"alpha": self.alpha(), "beta": self.beta(), "lam": self.lam()}
        return LayerDiagnostics.of(self.weight, self.rotation, **scalars)

    def extra_repr(self) -> str:
        """Describe the layer as torch's own convolutions do."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, groups={self.groups}"
        )

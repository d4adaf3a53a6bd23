"""Turn uint8 images into normalized, augmented float batches on a device.

Every step works on a whole batch of tensors; no Python code runs per image.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedbnn_core.data.dataset import NO_AUGMENTATION, Augmentation, Dataset
from fedbnn_core.errors import ConfigError

__all__ = ["ClientData", "batch_sizes", "normalize"]

# A client up to this size keeps its images as normalized floats: one gather then
# makes a batch. It is per client, so it stays far below what training itself takes.
_FLOAT_CACHE_BYTES = 64 * 2**20


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Map uint8 pixels to ``(pixel / 255 - mean) / std`` per channel, as float32.

    Parameters
    ----------
    images : uint8 (n, c, h, w)
        On any device; the result is on the same one.
    mean, std : sequence of float
        One number per channel.
    """
    scale, shift = _scale_and_shift(tuple(mean), tuple(std), images.device)
    return torch.addcmul(shift, images.float(), scale)


@lru_cache(maxsize=8)
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return both as (1, c, 1, 1); kept, for a copy to a device is a wait for it."""
    scale = torch.tensor([1 / (255 * s) for s in std])
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)])
    shape = (1, -1, 1, 1)
    return scale.view(shape).to(device), shift.view(shape).to(device)


def batch_sizes(num_samples: int, batch_size: int) -> list[int]:
    """Cut an epoch into batches, none of which holds a single sample.

    Batch normalization has no variance over one sample, so a last batch of one joins
    the batch before it. A client with one sample in all gets one batch of two, the
    same sample twice; a client without samples gets no batch.

    Returns
    -------
    list of int
        Their sum is `num_samples`, except that one sample makes ``[2]``.
    """
    if batch_size < 2:
        raise ConfigError(
            f"The batch size must be at least 2, but got {batch_size}: batch "
            "normalization cannot train on single samples."
        )
    if num_samples == 1:
        return [2]
    full, rest = divmod(num_samples, batch_size)
    sizes = [batch_size] * full
    if rest == 1:
        sizes[-1] += 1
    elif rest:
        sizes.append(rest)
    return sizes


class ClientData:
    """One client's training samples on its device, ready to be iterated.

    Parameters
    ----------
    images : uint8 array (n, c, h, w)
        Copied, so that a shared memory map stays untouched.
    labels : int array (n,)
        One label per image.
    mean, std : sequence of float
        Normalization per channel, of pixels / 255.
    augmentation : Augmentation, optional
        What happens to an image each time it is used.
    device : str or torch.device, default "cpu"
        Where the batches are made and delivered.
    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[Any],
        mean: Sequence[float],
        std: Sequence[float],
        *,
        augmentation: Augmentation = NO_AUGMENTATION,
        device: str | torch.device = "cpu",
    ) -> None:
        self._augmentation = augmentation
        self._mean, self._std = tuple(mean), tuple(std)
        self._shape = images.shape[1:]
        self.labels = torch.from_numpy(np.array(labels, dtype=np.int64)).to(device)
        pixels = torch.from_numpy(np.array(images)).to(device)
        padding = augmentation.crop_padding
        # Padding comes before normalization: the border is black, not average grey.
        pixels = F.pad(pixels, (padding,) * 4) if padding else pixels
        if augmentation.horizontal_flip:
            # Mirrored twins behind the originals: flipping is then a choice of rows.
            pixels = torch.cat([pixels, pixels.flip(3)])
        self._is_normalized = pixels.numel() * 4 <= _FLOAT_CACHE_BYTES
        self._frames = (
            normalize(pixels, self._mean, self._std) if self._is_normalized else pixels
        )

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        indices: NDArray[np.int64],
        *,
        device: str | torch.device = "cpu",
    ) -> "ClientData":
        """Take the samples that a partition gives to one client."""
        # A sorted read touches each page of a memory map once.
        indices = np.sort(indices)
        return cls(
            dataset.x_train[indices],
            dataset.y_train[indices],
            dataset.mean,
            dataset.std,
            augmentation=dataset.augmentation,
            device=device,
        )

    def __len__(self) -> int:
        return len(self.labels)

    def epoch(self, batch_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through all samples once in random order.

        Parameters
        ----------
        batch_size : int
            See `batch_sizes` for the last batch.
        seed : int
            Fixes order and augmentation, equally on every device; derive it from the
            run's seed, the round, the client and the epoch.

        Yields
        ------
        tuple of Tensor
            Images float32 (b, c, h, w) and labels int64 (b,).
        """
        # Drawn on the CPU, so that the numbers do not depend on the device.
        generator = torch.Generator().manual_seed(seed)
        device = self.labels.device
        sizes = batch_sizes(len(self), batch_size)
        total = sum(sizes)
        order = torch.randperm(len(self), generator=generator)
        if len(self) == 1:
            order = order.expand(total)
        rows = order
        if self._augmentation.horizontal_flip:
            rows = order + len(self) * torch.randint(2, (total,), generator=generator)
        offsets = torch.zeros(2, total, dtype=torch.int64)
        if self._augmentation.crop_padding:
            highest = 2 * self._augmentation.crop_padding + 1
            offsets = torch.randint(highest, (2, total), generator=generator)
        order, rows, offsets = order.to(device), rows.to(device), offsets.to(device)

        start = 0
        for size in sizes:
            batch = slice(start, start + size)
            images = self._cut(rows[batch], offsets[:, batch])
            if not self._is_normalized:
                images = normalize(images, self._mean, self._std)
            yield images, self.labels.index_select(0, order[batch])
            start += size

    def _cut(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """Cut each image out of its padded frame at its own offset (top, left)."""
        if not self._augmentation.crop_padding:
            return self._frames.index_select(0, rows)
        channels, height, width = self._shape
        _, _, frame_height, frame_width = self._frames.shape
        plane = frame_height * frame_width
        # Every run of `width` neighbours in memory is a row of this overlapping view;
        # selecting rows of it copies runs, several times faster than indexing pixels.
        runs = self._frames.as_strided(
            (self._frames.numel() - width + 1, width), (1, 1)
        )
        device = rows.device
        lines = torch.arange(height, device=device) * frame_width
        planes = torch.arange(channels, device=device) * plane
        corners = rows * (channels * plane) + offsets[0] * frame_width + offsets[1]
        starts = corners[:, None, None] + planes[:, None] + lines
        return runs.index_select(0, starts.view(-1)).view(-1, *self._shape)

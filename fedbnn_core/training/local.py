"""One client's local training: SGD over its own samples, epoch by epoch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from fedbnn_core.data.batches import ClientData
from fedbnn_core.seeding import derive_seed

__all__ = ["LocalTask", "prefer_channels_last", "train_locally"]


@dataclass(frozen=True)
class LocalTask:
    """What a client is asked to do in one round."""

    round_index: int
    """The round, counted from 0."""
    num_rounds: int
    """All rounds of the run: with the round, the clock of the sharpness schedule."""
    partition_id: int
    """Which client this is; together with seed and round it fixes the batches."""
    seed: int
    """The run's seed."""
    local_epochs: int
    """Passes over the local data."""
    batch_size: int
    """Samples per step."""
    lr: float
    """Learning rate of this round."""
    momentum: float = 0.0
    """Momentum of SGD, zero at the round's start."""
    weight_decay: float = 0.0
    """Weight decay of SGD."""


def train_locally(
    model: nn.Module,
    data: ClientData,
    task: LocalTask,
    *,
    begin_epoch: Callable[[int], None] | None = None,
    after_step: Callable[[int], None] | None = None,
    after_epoch: Callable[[int, float], None] | None = None,
) -> float:
    """Train the model in place (Eq. 23); return the mean loss of the last epoch.

    Parameters
    ----------
    model : on the data's device; left in training mode.
    data : the client's samples. Without samples nothing happens and 0.0 is returned.
    task : epochs, batch size, optimizer settings and seeds.
    begin_epoch : called with the epoch's index before its first batch.
    after_step : called with the number of steps done after every step.
    after_epoch : called with the epoch's index and its mean loss.
    """
    model.train()
    on_device = data.labels.device.type != "cpu"
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=task.lr,
        momentum=task.momentum,
        weight_decay=task.weight_decay,
        # One launch for all weights, which a CPU does not need.
        fused=on_device or None,
    )
    if on_device and task.momentum:
        # As if the first gradient had come, for torch 2.13's fused steps fail where a
        # weight gets its first one later than others (FedBAT).
        for weight in model.parameters():
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    mean_loss, steps = 0.0, 0
    for epoch in range(task.local_epochs):
        if begin_epoch is not None:
            begin_epoch(epoch)
        seed = derive_seed(
            task.seed, "batches", task.round_index, task.partition_id, epoch
        )
        total = torch.zeros((), device=data.labels.device)
        count = 0
        for images, labels in data.epoch(task.batch_size, seed):
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.detach() * len(labels)
            count += len(labels)
            steps += 1
            if after_step is not None:
                after_step(steps)
        mean_loss = float(total) / count if count else 0.0
        if after_epoch is not None:
            after_epoch(epoch, mean_loss)
    return mean_loss


def prefer_channels_last(model: nn.Module) -> nn.Module:
    """Lay out float convolutions channels-last, in place; binary ones do it anyway.

    On a CPU a training step of CNN4 then takes two thirds of the time, mostly
    because max-pooling vectorizes.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight.data
            module.weight.data = weight.to(memory_format=torch.channels_last)
    return model

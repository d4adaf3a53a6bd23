"""What the tests of the methods share: a method, replies, a few real samples."""

from dataclasses import dataclass

import numpy as np

from fedbnn_core.config import RunConfig
from fedbnn_core.data import load_dataset
from fedbnn_core.data.batches import ClientData
from fedbnn_core.methods import create_method
from fedbnn_core.training.local import LocalTask

SHAPE, CLASSES = (1, 28, 28), 10


@dataclass
class Reply:
    num_examples: int
    arrays: dict

    def array(self, name):
        return self.arrays[name]


def method(name, shape=SHAPE, classes=CLASSES, **overrides):
    named = {key.replace("_", "-"): value for key, value in overrides.items()}
    config = RunConfig.from_mapping({"method": name, **named}, complete=False)
    return create_method(config, shape, classes)


def client_data(start, stop):
    return ClientData.of(load_dataset("fmnist-mini"), np.arange(start, stop))


def task(partition_id=0, *, round_index=0, lr=0.1, epochs=1, batch_size=16):
    return LocalTask(
        round_index=round_index,
        num_rounds=10,
        partition_id=partition_id,
        seed=1,
        local_epochs=epochs,
        batch_size=batch_size,
        lr=lr,
    )


def one_round(tested, broadcast, *, clients=2, samples=40, round_index=0, lr=0.1):
    """Train unequal clients on real images; return their replies."""
    model, replies = tested.new_model(), []
    for k in range(clients):
        data = client_data(100 * k, 100 * k + samples + 10 * k)
        update = tested.train(
            model, broadcast, data, task(k, round_index=round_index, lr=lr)
        )
        replies.append(Reply(len(data), update.arrays | update.rotations))
    return replies

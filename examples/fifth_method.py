"""A federated method of your own, in one file: FedProx.

    python examples/fifth_method.py

Each client is pulled back to the weights that it was sent: its loss is that of its
images plus mu / 2 * ||w - w_sent||^2. What the server does is FedAvg's.

Put this file into `fedbnn_core/methods/` as `fedprox.py` and every command knows it:
`fedbnn run -c method=fedprox`. Here it runs in a plain loop instead.
"""

from dataclasses import replace
from types import SimpleNamespace

import torch
from torch import nn

import fedbnn_core as fb
from fedbnn_core.arrays import Arrays
from fedbnn_core.config import RunConfig
from fedbnn_core.data import limited, partition_indices
from fedbnn_core.data.batches import ClientData
from fedbnn_core.methods.base import ClientUpdate
from fedbnn_core.methods.fedavg import FedAvg
from fedbnn_core.networks.state import load_arrays, state_arrays
from fedbnn_core.training.local import LocalTask, train_locally

MU = 0.1


class FedProx(FedAvg):
    """FedAvg with a proximal term on the clients."""

    title = "FedProx"

    def train(
        self, model: nn.Module, broadcast: Arrays, data: ClientData, task: LocalTask
    ) -> ClientUpdate:
        """Do one client's round; what is returned travels to the server."""
        load_arrays(model, broadcast)
        sent = [p.detach().clone() for p in model.parameters()]

        @torch.no_grad()
        def pull_back(_step: int) -> None:
            # A step of SGD on the proximal term alone: w -= lr * mu * (w - w_sent).
            for parameter, start in zip(model.parameters(), sent, strict=True):
                parameter.lerp_(start, task.lr * MU)

        loss = train_locally(model, data, task, after_step=pull_back)
        return ClientUpdate(arrays=state_arrays(model), loss=loss)


METHOD = FedProx


def main(rounds: int = 5, clients: int = 10, images: int = 10_000) -> None:
    """Train on uneven clients and score the model after every round."""
    data = limited(fb.load_dataset("fmnist-mini"), max_train=images)
    config = RunConfig.from_mapping({"method": "fedavg"}, complete=False)
    method = FedProx(config, data.input_shape, data.num_classes)
    held = partition_indices(data.y_train, clients, "dirichlet", seed=1)
    samples = [ClientData.of(data, indices) for indices in held]
    broadcast, model = method.template.broadcast, method.new_model()
    task = LocalTask(0, rounds, 0, seed=1, local_epochs=1, batch_size=64, lr=0.1)
    for number in range(rounds):
        replies = []
        for client, own in enumerate(samples):
            todo = replace(task, round_index=number, partition_id=client)
            update = method.train(model, broadcast, own, todo)
            array = update.arrays.__getitem__
            replies.append(SimpleNamespace(num_examples=len(own), array=array))
        broadcast = method.aggregate(replies, broadcast).broadcast
        load_arrays(model, broadcast)
        print(f"round {number + 1}: {fb.evaluate(model, data).accuracy:.2%}")


if __name__ == "__main__":
    main()

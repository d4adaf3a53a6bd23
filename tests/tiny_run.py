"""A federation small enough for tests: the real server and clients, without Flower."""

import itertools
import os
import signal

import numpy as np
import torch

from fedbnn_core.aggregation.norms import update_norm
from fedbnn_core.config import RunConfig
from fedbnn_core.data.batches import ClientData
from fedbnn_core.runs.dataset import run_partition
from fedbnn_core.server.record import RoundTraffic
from fedbnn_core.server.reply_store import ReplyStore, StoredReply
from fedbnn_core.server.run import ServerRun, stored_config
from fedbnn_core.training.local import LocalTask

CLIENTS = 8


def write_data(path, *, train=160, test=80, seed=0, size=8):
    """Write square images of three classes, bright in different corners."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, train + test)
    images = generator.integers(0, 120, (train + test, size, size, 1))
    half = size // 2
    for k, (row, column) in enumerate([(0, 0), (0, half), (half, 0)]):
        images[labels == k, row : row + half, column : column + half] += 100
    images = images.astype(np.uint8)
    np.savez(
        path,
        x_train=images[:train],
        y_train=labels[:train],
        x_test=images[train:],
        y_test=labels[train:],
    )
    return path


def tiny_config(data, runs, **overrides):
    """Return the config of a run over `write_data`'s file."""
    settings = {
        "dataset": f"npz:{data}",
        "model": "resnet10",
        "model-width": 2,
        "num-server-rounds": 8,
        "clients-per-round": 3,
        "local-epochs": 1,
        "batch-size": 8,
        "device": "cpu",
        "output-dir": str(runs),
    }
    named = {key.replace("_", "-"): value for key, value in overrides.items()}
    return RunConfig.from_mapping(settings | named, complete=False)


class TinyFederation:
    """Clients that train for real, in this process."""

    def __init__(self, config, clients=CLIENTS):
        torch.set_num_threads(1)  # Tiny operations: threads only get in the way.
        self.clients = clients
        self.run = ServerRun(stored_config(config), clients)
        self.model = self.run.method.new_model()
        self.partition = run_partition(self.run.config, self.run.dataset, clients)

    def reply(self, client):
        """Let one client train; return its reply."""
        run, config = self.run, self.run.config
        data = ClientData.of(run.dataset, self.partition[client], device=run.device)
        task = LocalTask(
            round_index=run.rounds_done,
            num_rounds=config.num_server_rounds,
            partition_id=client,
            seed=config.seed,
            local_epochs=config.local_epochs,
            batch_size=config.batch_size,
            lr=config.learning_rate(run.rounds_done),
        )
        update = run.method.train(self.model, run.broadcast, data, task)
        return StoredReply(client, len(data), update.arrays | update.rotations)

    def round(self, change=lambda reply: reply):
        """Do one round; ``change`` may spoil replies. Return its metrics line."""
        run = self.run
        chosen = run.sample(range(self.clients))
        traffic = RoundTraffic(asked=chosen)
        with ReplyStore(folder=run.directory.path) as store:
            for client in chosen:
                reply = change(self.reply(client))
                traffic.update_norms[client] = update_norm(reply.arrays, run.broadcast)
                store.add(reply)
            return run.finish_round(store.in_partition_order(), traffic)

    def to_end(self, change=lambda reply: reply):
        """Do the rounds that are left; return the summary."""
        while self.run.rounds_done < self.run.config.num_server_rounds:
            self.round(change)
        return self.run.finish()


def run_to_end(data, runs, resumed, ready, die_at_sync):
    """Run a federation to its end, or until somebody kills this process.

    Parameters
    ----------
    data, runs, resumed : as for `tiny_config`.
    ready : an event that is set before the first round.
    die_at_sync : at which flush of a file to disk the process kills itself, in the
        midst of writing; 0 means never.
    """
    sync, left = os.fsync, itertools.count(die_at_sync - 1, -1)

    def fatal_sync(handle):
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(handle)

    os.fsync = fatal_sync
    federation = TinyFederation(tiny_config(data, runs, resume=resumed))
    ready.set()
    federation.to_end()

"""A federation small enough for tests: the real server and clients, without Flower."""

import itertools
import os
import signal
from dataclasses import replace

import numpy as np
import torch

from fedbnn_core.config import RunConfig
from fedbnn_core.server.local import LocalClients, run_round
from fedbnn_core.server.opening import open_run, stored_config

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


class TinyClients(LocalClients):
    """Clients that train for real, in this process; in a private run without noise."""

    def train(self, client):
        """Let one client train; in a private run all weigh the same."""
        reply = super().train(client)
        private = self.run.config.privacy != "none"
        return replace(reply, num_examples=1) if private else reply


class TinyFederation:
    """A run and its clients."""

    def __init__(self, config, clients=CLIENTS):
        torch.set_num_threads(1)  # Tiny operations: threads only get in the way.
        self.run = open_run(stored_config(config), clients)
        self.local = TinyClients(self.run)

    def reply(self, client):
        """Let one client train; return its reply."""
        return self.local.validated(self.local.train(client))

    def round(self, change=lambda reply: reply):
        """Do one round; ``change`` may spoil replies. Return its metrics."""
        return run_round(self.run, self.local, change)

    def to_end(self, change=lambda reply: reply):
        """Do the rounds that are left; return the summary."""
        while not self.run.is_done:
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

"""Memory of the server over many rounds and with many clients.

100 of 1,000 clients reply in every round, as in a simulation; their replies are the
broadcast with noise, so that the time goes to the server's own work.
"""

import io
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.aggregation import anonymous_bytes
from fedbnn_core.arrays import Array
from fedbnn_core.config import RunConfig
from fedbnn_core.server.opening import open_run
from fedbnn_core.server.reply import Reply
from fedbnn_core.server.run import ServerRun
from fedbnn_core.server.validation import validate

ROUNDS = 30
CLIENTS = (100, 1000)


def npy(array: Array) -> bytes:
    """Return an array as it travels."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def do_round(run: ServerRun, clients: int) -> None:
    """Let the sampled clients reply; validate, store and aggregate."""
    generator = np.random.default_rng(run.rounds_done)
    rotations = {name: npy(r) for name, r in run.context.rules.rotations.items()}

    def reply(client: int) -> Reply:
        noise = np.float32(1 + 0.01 * generator.normal())
        return validate(
            run.rules_for(client),
            arrays={
                name: npy(a * noise if a.dtype == np.float32 else a)
                for name, a in run.broadcast.items()
            },
            rotations=rotations,
            metrics={
                "num-examples": 1,
                "partition-id": client,
                "round": run.rounds_done,
                "loss": 1.0,
            },
            broadcast=run.broadcast,
            round_index=run.rounds_done,
            partition_id=client,
        )

    with run.begin_attempt(range(clients)) as attempt:
        for client in attempt.asked:
            attempt.take(client, partial(reply, client))
        run.end_attempt(attempt)


def main() -> None:
    """Print the memory after some rounds, for few and for many clients."""
    print("Server memory in MB, CNN4, 100 replies per round")
    for clients in CLIENTS:
        with tempfile.TemporaryDirectory() as folder:
            config = RunConfig.from_mapping(
                {
                    "num-server-rounds": ROUNDS,
                    "clients-per-round": 100,
                    "evaluate-every": ROUNDS,
                    "output-dir": str(Path(folder)),
                },
                complete=False,
            )
            run = open_run(config, clients)
            figures = []
            for number in range(1, ROUNDS + 1):
                do_round(run, clients)
                if number % 5 == 0:
                    figures.append(f"{number}: {anonymous_bytes() / 1e6:.0f}")
            run.finish()
        print(f"  {clients:5} clients, after round {', '.join(figures)}")


if __name__ == "__main__":
    main()

"""Real training while 2 of 10 clients send their update turned round, ten times."""

from dataclasses import replace

import numpy as np
import pytest

from tests.tiny_run import TinyFederation, tiny_config, write_data

pytestmark = pytest.mark.cpu_settings

ATTACKERS = (1, 6)


def hostile(federation):
    """Return a change of replies: the attackers' become w - 10 (w_k - w)."""

    def change(reply):
        if reply.partition_id not in ATTACKERS:
            return reply
        spoilt = dict(reply.arrays)
        for name, before in federation.run.broadcast.items():
            if before.dtype.kind == "f":
                turned = before - 10 * (spoilt[name] - before)
                # Nobody falls for a negative variance: such a reply is refused.
                is_variance = name.endswith("running_var")
                turned = np.abs(turned) if is_variance else turned
                spoilt[name] = np.asarray(turned, before.dtype)
        return replace(reply, arrays=spoilt)

    return change


def train_once(federation, replies):
    """Let clients take their reply to round 1 from `replies`, if another run has it.

    In round 1 all rules send the same: their clients train alike.
    """
    train = federation.local.train

    def trained(client):
        if federation.run.rounds_done:
            return train(client)
        if client not in replies:
            replies[client] = train(client)
        return replies[client]

    federation.local.train = trained


def errors_of_the_update(rule, folder, seed, replies, rounds=2):
    """Return, round by round, |update - honest| / |honest|.

    The honest update is the mean of the honest clients' updates, by hand.
    """
    config = tiny_config(
        write_data(folder / "data.npz", test=60, size=16, seed=seed),
        folder / rule,
        model="cnn4",
        clients_per_round=10,
        local_epochs=2,
        num_server_rounds=rounds,
        robust=rule,
        seed=seed,
    )
    federation = TinyFederation(config, clients=10)
    train_once(federation, replies)
    spoil, found = hostile(federation), []

    def convolutions(arrays):
        names = [name for name in sorted(arrays) if name.startswith("convs.")]
        kept = [arrays[name].ravel() for name in names if name.endswith(".weight")]
        return np.concatenate(kept).astype(np.float64)

    for _ in range(rounds):
        honest = []

        def change(reply, honest=honest):
            if reply.partition_id not in ATTACKERS:
                honest.append((reply.num_examples, convolutions(reply.arrays)))
            return spoil(reply)

        before = convolutions(federation.run.broadcast)
        federation.round(change)
        total = sum(size for size, _ in honest)
        mean = sum(size / total * weights for size, weights in honest)
        after = convolutions(federation.run.broadcast)
        size_honest = np.linalg.norm(mean - before)
        found.append(float(np.linalg.norm(after - mean) / size_honest))
    return found


def test_attackers_outdo_the_mean_but_no_robust_rule(tmp_path, training_seed, margin):
    """An error above 1 is worse than no update at all."""
    replies = {}
    for rule in ("none", "clip", "median", "trimmed-mean"):
        errors = errors_of_the_update(rule, tmp_path, training_seed, replies)
        margin(min(errors) - 2 if rule == "none" else 1 - max(errors))

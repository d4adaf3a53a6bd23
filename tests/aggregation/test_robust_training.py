"""Real training while 2 of 10 clients send their update turned round, ten times."""

from dataclasses import replace

import numpy as np
import pytest

from tests.tiny_run import TinyFederation, tiny_config, write_data

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


@pytest.mark.parametrize(
    ("rule", "lowest", "highest"),
    [
        ("none", 0.0, 0.45),
        ("clip", 0.45, 1.0),
        ("median", 0.8, 1.0),
        ("trimmed-mean", 0.8, 1.0),
    ],
)
def test_mean_learns_nothing_and_the_robust_rules_learn(
    rule, lowest, highest, tmp_path
):
    """Three classes: chance is a third. Clipping still lets the attackers pull."""
    config = tiny_config(
        write_data(tmp_path / "data.npz", test=200, size=16),
        tmp_path / "runs",
        model="cnn4",
        clients_per_round=10,
        local_epochs=2,
        num_server_rounds=6,
        robust=rule,
        seed=2,
    )
    federation = TinyFederation(config, clients=10)
    summary = federation.to_end(hostile(federation))
    assert lowest <= summary.test_accuracy <= highest
    # The rotated space by itself, in its best round.
    lines = federation.run.directory.read_metrics()
    best = max(line.scores["val_accuracy_rotated"] for line in lines)
    assert lowest <= best <= highest

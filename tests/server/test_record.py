"""What a round records, worked by hand."""

import numpy as np

from fedbnn_core.methods.template import PerClientBytes
from fedbnn_core.runs.metrics import Rejection
from fedbnn_core.server.record import RoundRecord, layer_metrics, weighted_mean
from fedbnn_core.server.reply import Reply

REPLIES = [
    Reply(3, 10, {}, 2.0, loss=1.0, layer_metrics={"cos-phi": [0.8, 0.6]}),
    Reply(5, 30, {}, 4.0, loss=None, layer_metrics={"cos-phi": [0.4]}),
]
NOMINAL = PerClientBytes(up=600, down=500)


def record():
    # 700 bytes came from each of 3, 4 and 5, and 80 from a late one.
    return RoundRecord(
        bytes_up=2180,
        bytes_down=3000,
        asked=[3, 4, 5, 7],
        missing=[7],
        rejected=[Rejection(4, "nonsense")],
    )


def test_mean_weighs_by_examples_and_excludes_who_said_nothing():
    norm = weighted_mean(REPLIES, lambda reply: reply.update_norm)
    assert norm == (10 * 2.0 + 30 * 4.0) / 40
    assert weighted_mean(REPLIES, lambda reply: reply.loss) == 1.0
    assert weighted_mean(REPLIES, lambda reply: None) is None
    assert weighted_mean([], lambda reply: 1.0) is None


def test_participation_tells_who_took_part_and_what_travelled():
    assert record().participation(REPLIES, NOMINAL) == {
        "clients": [3, 5],
        "examples": 40,
        "asked": [3, 4, 5, 7],
        "missing": [7],
        "rejected": [Rejection(4, "nonsense")],
        "bytes_up": 2180,
        "bytes_down": 3000,
        "failed_attempts": [],
        # Two replies came, four clients were sent the model.
        "bytes_up_nominal": 1200,
        "bytes_down_nominal": 2000,
    }


def test_bytes_of_failed_attempts_are_part_of_the_round():
    failed = [
        RoundRecord(bytes_up=50, bytes_down=400, asked=[1]).failed([], []),
        RoundRecord(bytes_up=7, bytes_down=600, asked=[2]).failed([2], [9]),
    ]
    told = record().participation(REPLIES, NOMINAL, failed)
    assert (told["bytes_up"], told["bytes_down"]) == (2237, 4000)
    assert told["failed_attempts"] == failed
    assert (failed[1].accepted, failed[1].quarantined) == ([2], [9])
    # Papers know no failures.
    assert (told["bytes_up_nominal"], told["bytes_down_nominal"]) == (1200, 2000)


def test_layers_get_the_clients_mean_cosine():
    layers = {"a": {"alpha": 0.5}, "b": {"alpha": 0.7}}
    told = layer_metrics(layers, REPLIES)
    np.testing.assert_allclose(told["a"]["cos_phi"], (10 * 0.8 + 30 * 0.4) / 40)
    # The second client sent one cosine only.
    assert told["b"] == {"alpha": 0.7, "cos_phi": 0.6}

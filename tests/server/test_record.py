"""A round's figures, worked by hand."""

import numpy as np

from fedbnn_core.methods.template import PerClientBytes
from fedbnn_core.server.record import RoundTraffic, layer_figures, weighted_mean
from fedbnn_core.server.reply_store import StoredReply
from fedbnn_core.server.validation import JudgedReply

REPLIES = [StoredReply(3, 10, {}), StoredReply(5, 30, {})]


def traffic():
    # 700 bytes came from each of 3, 4 and 5, and 80 from a late one.
    result = RoundTraffic(
        bytes_up=2180, bytes_down=3000, asked=[3, 4, 5, 7], missing=[7]
    )
    for reply, norm, loss, cosines in zip(
        REPLIES, (2.0, 4.0), (1.0, None), ([0.8, 0.6], [0.4]), strict=True
    ):
        figures = {"cos-phi": cosines}
        assert result.accept(JudgedReply(reply, norm, loss, figures)) is reply
    result.reject(4, "nonsense")
    return result


def test_mean_weighs_by_examples_and_leaves_out_who_said_nothing():
    assert weighted_mean(REPLIES, {3: 2.0, 5: 4.0}) == (10 * 2.0 + 30 * 4.0) / 40
    assert weighted_mean(REPLIES, {3: 2.0, 9: 4.0}) == 2.0
    assert weighted_mean(REPLIES, {}) is None


def test_figures_tell_who_took_part_and_what_travelled():
    assert traffic().losses == {3: 1.0}
    assert traffic().figures(REPLIES, PerClientBytes(up=600, down=500)) == {
        "clients": [3, 5],
        "examples": 40,
        "asked": [3, 4, 5, 7],
        "missing": [7],
        "rejected": [{"client": 4, "reason": "nonsense"}],
        "update_norm": 3.5,
        "bytes_up": 2180,
        "bytes_down": 3000,
        "failed_attempts": [],
        # Two replies came, four clients were sent the model.
        "bytes_up_nominal": 1200,
        "bytes_down_nominal": 2000,
    }


def test_bytes_of_failed_attempts_are_part_of_the_round():
    failed = [
        RoundTraffic(bytes_up=50, bytes_down=400, asked=[1]).attempt(),
        RoundTraffic(bytes_up=7, bytes_down=600, asked=[2]).attempt(),
    ]
    figures = traffic().figures(REPLIES, PerClientBytes(up=600, down=500), failed)
    assert (figures["bytes_up"], figures["bytes_down"]) == (2237, 4000)
    assert figures["failed_attempts"] == failed
    # Papers know no failures.
    assert (figures["bytes_up_nominal"], figures["bytes_down_nominal"]) == (1200, 2000)


def test_layers_get_the_clients_mean_cosine():
    layers = {"a": {"alpha": 0.5}, "b": {"alpha": 0.7}}
    figures = layer_figures(layers, REPLIES, traffic())
    np.testing.assert_allclose(figures["a"]["cos_phi"], (10 * 0.8 + 30 * 0.4) / 40)
    # The second client sent one cosine only.
    assert figures["b"] == {"alpha": 0.7, "cos_phi": 0.6}

"""What a private client sends, through Flower's real mod."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from client_app.private_round import private_arrays
from fedbnn_core.config import RunConfig

BROADCAST = {
    "w": np.linspace(-1, 1, 40_000, dtype=np.float32).reshape(100, 400),
    "omega": np.array(0.25, np.float32),
    "bn.num_batches_tracked": np.array(3),
}


@pytest.fixture
def exchange(monkeypatch):
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    content = RecordDict({"config": ConfigRecord({"round": 0})})
    message = Message(content=content, dst_node_id=1, message_type="train")
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={}
    )
    return {"message": message, "context": context}


def config(clip, noise):
    return RunConfig.from_mapping(
        {"privacy-clip-norm": clip, "privacy-noise-multiplier": noise}, complete=False
    )


def trained(scale):
    return {
        "w": BROADCAST["w"] + np.float32(scale),
        "omega": np.array(0.25 + 5 * scale, np.float32),
        "bn.num_batches_tracked": np.array(90),
    }


def update(arrays):
    return np.concatenate(
        [(arrays[n] - BROADCAST[n]).reshape(-1) for n in ("w", "omega")]
    ).astype(np.float64)


def test_update_is_clipped_as_a_whole(exchange):
    # 40,000 times 0.1 has norm 20, and the scalar's 0.5 hardly adds to it.
    got = private_arrays(trained(0.1), BROADCAST, config(2.0, 1e-6), **exchange)
    assert np.linalg.norm(update(got)) == pytest.approx(2.0, rel=1e-3)
    np.testing.assert_allclose(got["w"] - BROADCAST["w"], 0.01, rtol=0.01)
    # The scalar is part of the update: 0.5 becomes 0.05.
    assert float(got["omega"]) == pytest.approx(0.25 + 0.05, abs=1e-3)
    assert got["omega"].shape == ()
    assert int(got["bn.num_batches_tracked"]) == 3


def test_short_update_is_not_stretched(exchange):
    got = private_arrays(trained(0.001), BROADCAST, config(2.0, 1e-6), **exchange)
    np.testing.assert_allclose(got["w"] - BROADCAST["w"], 0.001, atol=1e-5)


def test_noise_has_the_configured_deviation_everywhere(exchange):
    settings = config(0.5, 3.0)
    draws = [
        private_arrays(trained(0.0001), BROADCAST, settings, **exchange)
        for _ in range(60)
    ]
    assert update(draws[0]).std() == pytest.approx(1.5, rel=0.02)
    scalars = np.array([float(draw["omega"]) for draw in draws])
    # 60 draws: the deviation's own standard error is 9 %.
    assert 1.0 < scalars.std() < 2.0


def test_noise_does_not_follow_numpys_seed(exchange):
    draws = []
    for _ in range(2):
        np.random.seed(0)
        got = private_arrays(trained(0.1), BROADCAST, config(1.0, 1.0), **exchange)
        draws.append(update(got))
    assert np.abs(draws[0] - draws[1]).max() > 0.1


def spoilt(value):
    arrays = trained(0.1)
    arrays["w"][3, 5] = value
    return arrays


NOTHING_TO_CLIP = {
    "nan": lambda: spoilt(np.nan),
    "inf": lambda: spoilt(-np.inf),
    "zero": lambda: trained(0.0),
    "omega": lambda: trained(0.0) | {"omega": np.array(np.nan, np.float32)},
}


@pytest.mark.parametrize("kind", NOTHING_TO_CLIP)
def test_update_that_cannot_be_clipped_is_sent_as_noise_alone(exchange, kind):
    arrays = NOTHING_TO_CLIP[kind]()
    silent = private_arrays(arrays, BROADCAST, config(2.0, 1e-6), **exchange)
    assert np.abs(update(silent)).max() < 2e-5
    noisy = update(private_arrays(arrays, BROADCAST, config(0.5, 3.0), **exchange))
    assert np.isfinite(noisy).all()
    assert noisy.std() == pytest.approx(1.5, rel=0.02)


def test_update_too_short_to_be_squared_is_noise_alone(exchange):
    zeros = {"w": np.zeros(50, np.float32)}
    short = {"w": np.full(50, 1e-30, np.float32)}
    got = private_arrays(short, zeros, config(0.5, 3.0), **exchange)
    assert 0.5 < got["w"].std() < 3.0

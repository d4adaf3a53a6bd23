import pytest

from fedbnn_core.runs.metrics import RoundMetrics, Summary


@pytest.fixture
def description():
    return {
        "config": {"method": "fedbnn", "seed": 1, "tracker": "none"},
        "class_names": ["cat", "dog", "eel"],
    }


@pytest.fixture
def lines():
    """Two rounds; the second was not evaluated."""
    common = {
        "num_rounds": 2,
        "best_round": 1,
        "best_val_accuracy": 0.5,
        "clients": [3, 5],
        "rejected": [{"client": 4, "reason": "late"}],
        "bytes_up": 1000,
        "bytes_down": 900,
        "bits_up": 1.25,
        "bits_down": 8.5,
        "seconds": {"train": 2.0, "aggregate": 0.5, "evaluate": 0.25},
    }
    layer = {"alpha": 0.5, "beta": 0.75, "lambda": 0.625, "cos_phi": None}
    first = {
        "round": 1,
        "val_accuracy": 0.5,
        "val_loss": 1.25,
        "val_accuracy_weights": 0.25,
        "val_loss_weights": 2.5,
        "train_loss": 1.5,
        "lr": 0.1,
        "t": 0.25,
        "layers": {"convs.0": layer, "convs.1": {**layer, "cos_phi": 0.875}},
    }
    second = {"round": 2, "train_loss": float("nan"), "lr": 0.05, "t": 4.0}
    return [RoundMetrics.from_json(common | line) for line in (first, second)]


@pytest.fixture
def summary():
    return Summary(
        best_round=1,
        test_accuracy=0.625,
        test_loss=1.0,
        test_confusion=[[5, 1, 0], [0, 4, 2], [1, 0, 3]],
    )

"""Own data of odd shape trains: 7 classes of grey 40x52 images in files."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedbnn_core.binary.model import begin_epoch, begin_round
from fedbnn_core.binary.surrogate import Sharpness
from fedbnn_core.data import load_dataset
from fedbnn_core.data.batches import ClientData
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.server.scoring import HeldOut, evaluate
from fedbnn_core.training.local import LocalTask, prefer_channels_last, train_locally


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small networks are quicker so, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven classes: a bright bar in one of seven places, on noise."""
    root = tmp_path_factory.mktemp("seven")
    rng = np.random.default_rng(0)
    for label in range(7):
        (root / f"bar {label}").mkdir()
        for index in range(15):
            image = rng.integers(0, 120, (40, 52), dtype=np.uint8)
            image[:, 7 * label : 7 * label + 7] += 120
            Image.fromarray(image).save(root / f"bar {label}" / f"{index}.png")
    return root


@pytest.mark.cpu_settings
def test_seven_grey_classes_train(
    folder: Path, training_seed: int, margin: Callable[[float], None]
) -> None:
    dataset = load_dataset(f"folder:{folder}")
    assert dataset.input_shape == (1, 40, 52)
    spec = ModelSpec("cnn4", dataset.input_shape, dataset.num_classes)
    model = prefer_channels_last(build_model(spec, seed=training_seed))
    begin_round(model)
    data = ClientData.of(dataset, np.arange(len(dataset.y_train)))
    task = LocalTask(
        round_index=0,
        num_rounds=1,
        partition_id=0,
        seed=training_seed,
        local_epochs=3,
        batch_size=16,
        lr=0.05,
    )
    train_locally(
        model, data, task, begin_epoch=lambda _: begin_epoch(model, Sharpness(0.1))
    )
    held_out = HeldOut(
        np.array(dataset.x_test),
        np.array(dataset.y_test),
        dataset.test_mean,
        dataset.test_std,
        num_classes=7,
    )
    # Chance is 1/7.
    margin(evaluate(model, held_out).accuracy - 0.6)


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("name", ["cnn4", "resnet10"])
def test_a_client_with_no_or_one_sample_keeps_the_model_finite(
    folder: Path, name: str, count: int
) -> None:
    dataset = load_dataset(f"folder:{folder}")
    model = build_model(ModelSpec(name, dataset.input_shape, 7), seed=0)
    begin_round(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    data = ClientData.of(dataset, np.arange(count))
    task = LocalTask(
        round_index=0,
        num_rounds=1,
        partition_id=0,
        seed=0,
        local_epochs=1,
        batch_size=16,
        lr=0.1,
    )
    train_locally(
        model, data, task, begin_epoch=lambda _: begin_epoch(model, Sharpness(0.1))
    )
    after = model.state_dict()
    assert all(value.isfinite().all() for value in after.values())
    trained = any(not after[key].equal(before[key]) for key in before)
    assert trained == (count == 1)


def test_a_class_that_a_half_lacks_is_counted_as_absent(folder: Path) -> None:
    dataset = load_dataset(f"folder:{folder}")
    model = build_model(ModelSpec("cnn4", dataset.input_shape, 7), seed=0)
    lacking = np.flatnonzero(dataset.y_test != 3)
    held_out = HeldOut(
        dataset.x_test[lacking],
        dataset.y_test[lacking],
        dataset.test_mean,
        dataset.test_std,
        num_classes=7,
    )
    confusion = evaluate(model, held_out).confusion
    assert confusion.shape == (7, 7)
    assert confusion[3].sum() == 0
    assert confusion.sum() == len(lacking)

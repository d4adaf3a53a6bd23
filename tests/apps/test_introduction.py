"""What a device says of itself when the server asks, with the real ClientApp."""

import hashlib
import json

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.logger import FLOWER_LOGGER

from client_app.app import app
from fedbnn_core import __version__
from fedbnn_core.config import RunConfig
from fedbnn_core.data import load_local
from fedbnn_core.fleet.own_data import DataTask
from fedbnn_core.messages import MODEL, MODEL_QUERY, ModelOffer
from fedbnn_core.speed.runtimes import packed_bytes
from tests.apps.local_grid import LocalGrid
from tests.tiny_run import write_data


@pytest.fixture
def introduce(tmp_path):
    """Return a function that asks a device and returns its identity."""
    LocalGrid(0, {})  # Messages need an identity of the process.

    def ask(dataset, *, stored=None, task="", **node_config):
        config = RunConfig.from_mapping({"dataset": dataset}, complete=False)
        question = {"version": __version__, "task": task}
        if stored:
            question["run-config"] = json.dumps({"dataset": stored})
        message = Message(
            content=RecordDict({"identity": ConfigRecord(question)}),
            dst_node_id=100,
            message_type="query",
        )
        message.metadata.__dict__["_message_id"] = "m1"
        node = {key.replace("_", "-"): value for key, value in node_config.items()}
        context = Context(
            run_id=1,
            node_id=100,
            node_config={"partition-id": 0, **node},
            state=RecordDict(),
            run_config=config.to_mapping(),
        )
        return app(message, context).content["identity"]

    return ask


def test_a_device_without_the_runs_dataset_says_so(introduce, tmp_path):
    here = introduce("fmnist-mini", device_name="camera")
    assert "problem" not in here
    missing = introduce("cifar10", device_name="camera", data_dir=str(tmp_path))
    assert f"'cifar10' was not found in {tmp_path}" in missing["problem"]
    assert "fedbnn data get cifar10" in missing["problem"]


def test_a_device_looks_in_its_own_folder(introduce, tmp_path):
    write_data(tmp_path / "images.npz")
    for folder, is_there in ((tmp_path, True), (tmp_path / "no", False)):
        said = introduce("npz:images.npz", device_name="d", data_dir=str(folder))
        assert ("problem" not in said) == is_there


def test_in_a_resumed_run_the_stored_dataset_counts(introduce, tmp_path):
    stored = f"npz:{tmp_path / 'gone.npz'}"
    said = introduce("fmnist-mini", device_name="camera", stored=stored)
    assert "gone.npz does not exist" in said["problem"]


@pytest.mark.parametrize("key", ["data", "data_path"])
def test_own_images_are_found_under_either_name(introduce, tmp_path, key):
    path = write_data(tmp_path / "images.npz", train=40)
    task = DataTask.of(load_local(path), min_examples=1).to_json()
    said = introduce("fmnist-mini", task=task, **{key: str(path)})
    assert said["own-examples"] == 40


def test_a_simulated_client_is_not_asked_for_data(introduce, tmp_path):
    said = introduce("cifar10", data_dir=str(tmp_path))
    assert "problem" not in said


def test_the_owner_is_told_that_the_model_has_arrived(tmp_path, caplog, monkeypatch):
    LocalGrid(0, {})
    content = packed_bytes("cnn4", (1, 28, 28))
    offer = ModelOffer(
        sha256=hashlib.sha256(content).hexdigest(), run="run-7", val_accuracy=0.5
    )
    model = ArrayRecord({MODEL: Array(np.frombuffer(content, np.uint8))})
    records = RecordDict(
        {ModelOffer.RECORD: ConfigRecord(offer.to_record()), MODEL: model}
    )
    message = Message(records, dst_node_id=1, message_type=f"query.{MODEL_QUERY}")
    message.metadata.__dict__["_message_id"] = "m1"
    context = Context(1, 1, {"model-dir": str(tmp_path)}, RecordDict(), {})
    monkeypatch.setattr(FLOWER_LOGGER, "propagate", True)
    app(message, context)
    assert "The model has arrived: run-7" in caplog.text
    assert f"fedbnn predict {tmp_path / 'model.fbnn'} IMAGE" in caplog.text

"""Devices with images of their own, of which one has a wrong class."""

import json

import numpy as np
import pytest
from PIL import Image

from fedbnn_core.data import load_dataset

pytestmark = pytest.mark.deploy


def write_photos(folder, classes, per_class, start):
    """Save embedded images as files, one folder per class."""
    dataset = load_dataset("fmnist-mini")
    for label, name in classes.items():
        found = np.flatnonzero(dataset.y_train == label)[start : start + per_class]
        (folder / name).mkdir(parents=True)
        for index in found:
            image = Image.fromarray(dataset.x_train[index, 0])
            image.save(folder / name / f"{index}.png")
    return folder


def test_own_images_train_and_the_model_runs_on_the_device(site, tmp_path):
    names = load_dataset("fmnist-mini").class_names
    known = {1: names[1], 8: names[8]}
    good = write_photos(tmp_path / "photos", known, 30, 0)
    wrong = write_photos(tmp_path / "wrong", {1: "unicorn"}, 30, 0)
    site.init("camera", "phone", "robot")
    site.serve()
    for name, data in (("camera", good), ("phone", wrong), ("robot", "partition")):
        device = site.device(name, "--data", data)
        device.wait_for("Connected")
    run = site.run(num_server_rounds=1, quorum=0.5)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "phone is left out" in run.stdout
    assert "'unicorn', which is none of the classes" in run.stdout
    (line,) = site.run_directory().read_metrics()
    assert line["clients"] == [0, 2]
    # Four fifths of the camera's images, and the robot's third of 400.
    assert line["examples"] == len(known) * 24 + 133
    # The model is offered to all devices, those left out of training included.
    model = site.folder / "phone" / "models" / "model.fbnn"
    picture = next(good.rglob("*.png"))
    answer = site.fedbnn("predict", model, picture, "--json")
    assert answer.returncode == 0, answer.stderr
    (result,) = json.loads(answer.stdout)
    assert result["classes"][0]["class"] in names

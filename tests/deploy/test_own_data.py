"""Devices with images of their own, and devices that do not fit the run."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from fedbnn_core import __version__
from fedbnn_core.data import load_dataset
from tests.deploy.site import ROOT

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


def write_archive(path, classes, per_class):
    """Save embedded images as arrays, their classes by name, without a test set."""
    dataset = load_dataset("fmnist-mini")
    found = np.concatenate(
        [np.flatnonzero(dataset.y_train == label)[:per_class] for label in classes]
    )
    names = [classes[label] for label in dataset.y_train[found]]
    np.savez(path, x_train=dataset.x_train[found, 0], y_train=np.array(names))
    return path


def other_version(folder):
    """Copy the packages as another version of FedBNN would have them."""
    for name in ("fedbnn_core", "server_app", "client_app"):
        shutil.copytree(ROOT / name, folder / name)
    path = folder / "fedbnn_core" / "__init__.py"
    path.write_text(path.read_text().replace(__version__, "0.0.9"))
    return folder


def test_own_images_train_and_the_model_runs_on_the_device(site, tmp_path):
    names = load_dataset("fmnist-mini").class_names
    known = {1: names[1], 8: names[8]}
    good = write_photos(tmp_path / "photos", known, 30, 0)
    (good / names[1] / "broken.png").write_bytes(b"no image")
    wrong = write_photos(tmp_path / "wrong", {1: "unicorn"}, 30, 0)
    few = write_photos(tmp_path / "few", known, 3, 0)
    archive = write_archive(tmp_path / "scans.npz", {0: names[0], 3: names[3]}, 40)
    old = other_version(tmp_path / "old")
    site.init("camera", "robot", "phone", "clock", "radio")
    site.serve()
    devices = {
        "camera": site.device("camera", "--data", good),
        "robot": site.device("robot", "--data", archive),
        "phone": site.device("phone", "--data", wrong),
        "clock": site.device("clock", "--data", few),
        "radio": site.device("radio", PYTHONPATH=str(old)),
    }
    for device in devices.values():
        device.wait_for("Connected")
    assert "60 images of 2 classes" in devices["camera"].text()
    assert "80 images of 2 classes" in devices["robot"].text()
    assert "1 files cannot be read and are left out" in devices["camera"].text()
    run = site.run(num_server_rounds=1, quorum=0.4)
    assert run.returncode == 0, run.stdout + run.stderr
    # The operator reads why a device is left out, and so does its owner.
    for name, reason in (
        ("phone", "'unicorn', which is none of the classes"),
        ("clock", "training images, at least 10 are needed"),
        ("radio", "runs fedbnn"),
    ):
        assert f"{name} is excluded" in run.stdout
        assert reason in run.stdout
        assert reason in devices[name].text()
    (line,) = site.run_directory().read_metrics()
    assert line.clients == [0, 1]
    # A fifth of each class is held out: 24 of 30, and 32 of 40.
    assert line.examples == 2 * 24 + 2 * 32
    # The model is offered to all devices that can read it, trained or not.
    assert "4 of 4 devices stored the model" in run.stdout
    model = site.folder / "phone" / "models" / "model.fbnn"
    picture = next(good.rglob("[0-9]*.png"))
    answer = site.fedbnn("predict", model, picture, "--json")
    assert answer.returncode == 0, answer.stderr
    (result,) = json.loads(answer.stdout)
    assert result["classes"][0]["class"] in names

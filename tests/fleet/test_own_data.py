"""A device's own images for a run."""

import os
import stat
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from client_app.own_data import describe_own_data
from fedbnn_core.data import load_dataset
from fedbnn_core.errors import DataError
from fedbnn_core.fleet.own_data import DataTask, load_own_data, summarise_own_data

TASK = DataTask(
    class_names=("cat", "dog", "owl"),
    input_shape=(1, 6, 8),
    mean=(0.25,),
    std=(0.5,),
    crop_padding=2,
    horizontal_flip=True,
    min_examples=4,
)


@pytest.fixture(autouse=True)
def _private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDBNN_CACHE", str(tmp_path / "cache"))


def photos(folder, classes, count=6):
    generator = np.random.default_rng(3)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = generator.integers(0, 256, (20, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    return folder


def test_photos_get_the_runs_size_colours_classes_and_normalization(tmp_path):
    data = load_own_data(photos(tmp_path / "p", ["owl", "cat"]), TASK)
    assert data.input_shape == (1, 6, 8)
    assert data.class_names == ("cat", "dog", "owl")
    assert set(data.y_train.tolist()) == {0, 2}  # "owl" is the run's third class
    assert (data.mean, data.std, data.test_mean) == ((0.25,), (0.5,), (0.25,))
    assert data.augmentation.crop_padding == 2
    assert data.augmentation.horizontal_flip


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_decoded_photos_are_for_their_owners_eyes_only(tmp_path, form):
    umask = os.umask(0o022)
    try:
        path = photos(tmp_path / "p", ["cat"])
        if form == "archive":
            path = tmp_path / "p.npz"
            images = np.zeros((8, 6, 8, 1), np.uint8)
            np.savez(path, x_train=images, y_train=np.zeros(8, int))
        load_own_data(path, TASK)
        load_dataset("fmnist-mini")
    finally:
        os.umask(umask)
    entries = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    modes = {path.name[:3]: stat.S_IMODE(path.stat().st_mode) for path in entries}
    assert modes.pop("fmn", 0o755) == 0o755  # Anybody's; other users may share it.
    assert list(modes.values()) == [0o700]


def test_an_unknown_class_is_named(tmp_path):
    with pytest.raises(DataError, match="'frog', which is none of the classes"):
        load_own_data(photos(tmp_path / "p", ["cat", "frog"]), TASK)


def test_too_few_images_are_counted(tmp_path):
    # A fifth of each class is held out: 3 of 4 remain.
    folder = photos(tmp_path / "p", ["cat"], count=4)
    with pytest.raises(DataError, match="3 training images, at least 4 are needed"):
        load_own_data(folder, TASK)


def test_a_private_run_learns_no_number_of_images(tmp_path):
    few = photos(tmp_path / "few", ["cat"], count=4)
    enough = photos(tmp_path / "enough", ["cat", "owl"], count=10)
    for private, count in ((False, 16), (True, 1)):
        task = replace(TASK, private=private).to_json()
        assert describe_own_data(str(enough), task) == (count, "")
        examples, problem = describe_own_data(str(few), task)
        assert examples == 0
        assert ("3 training images" in problem) is not private
        assert private is not any(c.isdigit() for c in problem)


def test_an_archive_of_another_size_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x_train=np.zeros((9, 6, 9), np.uint8), y_train=np.arange(9) % 3)
    with pytest.raises(DataError, match="6x9 with 1 channel, the run needs 6x8"):
        load_own_data(path, TASK)


def test_the_task_of_a_dataset_survives_its_journey():
    dataset = load_dataset("fmnist-mini")
    task = DataTask.of(dataset, min_examples=7)
    back = DataTask.from_json(task.to_json())
    assert back == task
    assert back.class_names == dataset.class_names
    assert back.input_shape == (1, 28, 28)
    assert back.mean == dataset.mean


def test_the_summary_counts_classes_and_names_what_cannot_be_read(tmp_path):
    folder = photos(tmp_path / "p", ["cat", "dog"], count=3)
    (folder / "dog" / "broken.jpg").write_bytes(b"not an image")
    text = summarise_own_data(folder)
    assert "6 images of 2 classes (cat 3, dog 3)" in text
    assert "1 files cannot be read" in text
    assert "dog/broken.jpg" in text


def test_nothing_to_train_on_is_an_error(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        summarise_own_data(tmp_path / "nowhere")
    (tmp_path / "p" / "cat").mkdir(parents=True)
    (tmp_path / "p" / "cat" / "x.png").write_bytes(b"x")
    with pytest.raises(DataError, match="none of the 1 image files"):
        summarise_own_data(tmp_path / "p")

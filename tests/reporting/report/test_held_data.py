import base64
import io
from collections import Counter

import numpy as np
from PIL import Image

from fedbnn_core.data import load_dataset
from fedbnn_core.reporting.report.held_data import (
    held_data,
    pick_mistakes,
    png_data_uri,
)
from fedbnn_core.runs.directory import RunDirectory
from tests.reporting.report.runs import write_run


def test_mistakes_go_round_the_confused_pairs_surest_first():
    truth = np.array([0, 0, 0, 1, 1, 2])
    logits = np.array(
        [
            [0.0, 1.0, 0.0],  # 0 taken for 1, by 1
            [0.0, 3.0, 0.0],  # 0 taken for 1, by 3
            [5.0, 0.0, 0.0],  # right
            [0.0, 0.0, 9.0],  # 1 taken for 2
            [0.0, 5.0, 0.0],  # right
            [0.0, 0.0, 1.0],  # right
        ]
    )
    assert pick_mistakes(logits, truth, limit=10) == [1, 3, 0]
    assert pick_mistakes(logits, truth, limit=2) == [1, 3]
    assert pick_mistakes(logits[2:3], truth[2:3], limit=5) == []


def test_pictures_keep_every_pixel():
    generator = np.random.default_rng(0)
    for shape in ((1, 28, 28), (3, 32, 20)):
        image = generator.integers(0, 256, shape, dtype=np.uint8)
        head, text = png_data_uri(image).split(",")
        assert head == "data:image/png;base64"
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))
        expected = image[0] if len(image) == 1 else np.moveaxis(image, 0, 2)
        np.testing.assert_array_equal(pixels, expected)


def test_mistakes_of_a_real_run_are_wrong_and_agree_with_its_confusion(real_run):
    directory = RunDirectory.open(real_run)
    description = directory.read_json("config.json")
    found = held_data(directory, description, with_mistakes=True)
    assert found.notes == []
    confusion = directory.read_json("summary.json")["test_confusion"]
    pairs = Counter((one["true"], one["predicted"]) for one in found.mistakes)
    for (true, predicted), count in pairs.items():
        assert true != predicted
        assert count <= confusion[true][predicted]
    # Images are of the test set and carry their own label.
    dataset = load_dataset("fmnist-mini")
    known = {
        (png_data_uri(image), int(label))
        for image, label in zip(dataset.x_test, dataset.y_test, strict=True)
    }
    assert all((one["image"], one["true"]) in known for one in found.mistakes)


def test_partition_counts_are_those_of_the_labels(tmp_path):
    directory = RunDirectory.open(write_run(tmp_path / "a", rounds=1, clients=9))
    found = held_data(
        directory, directory.read_json("config.json"), with_mistakes=False
    )
    stored = np.load(directory.path / "partition.npz")
    labels = load_dataset("fmnist-mini").y_train
    assert found.total_clients == 9
    assert sum(map(sum, found.counts)) == len(stored["indices"])
    offsets = stored["offsets"]
    third = labels[stored["indices"][offsets[2] : offsets[3]]]
    assert found.counts[2] == [int((third == c).sum()) for c in range(10)]


def test_of_many_clients_an_even_choice_is_shown(tmp_path):
    directory = RunDirectory.open(write_run(tmp_path / "a", rounds=1, clients=900))
    found = held_data(
        directory, directory.read_json("config.json"), with_mistakes=False
    )
    assert found.total_clients == 900
    assert found.clients == list(range(0, 900, 3))
    assert len(found.counts) == len(found.sizes) == 300

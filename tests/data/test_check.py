"""Looking own data over: counts, sizes, damage, duplicates."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedbnn_core.cli import app
from fedbnn_core.data.check import check_data
from tests.data.readers.test_folder import fill, save


def test_a_sound_folder(tmp_path: Path) -> None:
    fill(tmp_path / "d" / "train", classes=2, count=3)
    for label in range(2):
        save(tmp_path / "d" / "test" / f"class {label}" / "x.png", seed=900 + label)
    report = check_data(tmp_path / "d")
    assert report.problems == ()
    assert report.train_counts.tolist() == [3, 3]
    assert report.test_counts.tolist() == [1, 1]
    assert report.sizes == {(40, 52): 8}
    assert report.input_shape == (1, 40, 52)
    assert report.has_own_test_set


def broken_folder(root: Path) -> None:
    fill(root / "train", classes=2, count=4)
    pixels = save(root / "train" / "class 0" / "0.png", size=(40, 52), seed=1)
    # The same picture in another format, in the test set and with another class.
    (root / "test" / "class 0").mkdir(parents=True)
    Image.fromarray(pixels).save(root / "test" / "class 0" / "copy.bmp")
    Image.fromarray(pixels).save(root / "train" / "class 1" / "copy.tif")
    save(root / "train" / "class 1" / "small.png", size=(9, 9), seed=5)
    (root / "train" / "class 1" / "bad [1].png").write_bytes(b"junk")
    save(root / "test" / "class 2" / "z.png", seed=77)


def test_everything_that_is_wrong_is_found(tmp_path: Path) -> None:
    root = tmp_path / "ordner ä"
    broken_folder(root)
    report = check_data(root)
    assert report.unreadable == ("train/class 1/bad [1].png",)
    assert report.leaks == (("train/class 0/0.png", "test/class 0/copy.bmp"),)
    assert report.contradictions == (("train/class 0/0.png", "train/class 1/copy.tif"),)
    assert report.sizes == {(40, 52): 11, (9, 9): 1}
    assert report.problems == (
        "1 files cannot be read",
        "1 test images are also training images",
        "1 images have two classes",
        "class class 2 has no training images",
        "class class 1 has no test images",
    )


def test_an_archive(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
    path = tmp_path / "own.npz"
    np.savez(
        path,
        x_train=images,
        y_train=np.array(["b", "a"] * 3),
        x_test=images[:1],
        y_test=np.array(["b"]),
    )
    report = check_data(path)
    assert report.train_counts.tolist() == [3, 3]
    assert report.leaks == (("train[0]", "test[0]"),)


def test_the_command_prints_and_its_exit_code_tells(tmp_path: Path) -> None:
    broken_folder(tmp_path / "bad")
    result = CliRunner().invoke(app, ["data", "check", str(tmp_path / "bad")])
    assert result.exit_code == 1
    for part in ("bad [1].png", "40x52 (11), 9x9 (1)", "copy.bmp", "two classes"):
        assert part in result.output
    fill(tmp_path / "good", classes=3, count=10)
    result = CliRunner().invoke(
        app, ["data", "check", str(tmp_path / "good"), "--size", "20x26"]
    )
    assert result.exit_code == 0, result.output
    assert "Nothing to put right" in result.output
    assert "1 x 20 x 26 (grey)" in result.output
    assert "a fifth of each class is held out" in result.output


@pytest.mark.parametrize("size", ["40", "x", "0x5", "4x-2"])
def test_a_bad_size_is_refused(size: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["data", "check", str(tmp_path), "--size", size])
    assert "such as 40x52" in str(result.exception)


def test_skipped_photos_and_links_to_nowhere_are_listed(tmp_path: Path) -> None:
    fill(tmp_path / "d", classes=2)
    (tmp_path / "d" / "class 1" / "IMG_1.HEIC").write_bytes(b"ftypheic")
    (tmp_path / "d" / "class 0" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    report = check_data(tmp_path / "d")
    assert report.skipped == ("class 1/IMG_1.HEIC",)
    assert report.unreadable == ("class 0/gone.png",)
    assert "1 photos are in a format that is not read" in report.problems


def test_names_as_in_a_run_are_understood(tmp_path: Path) -> None:
    fill(tmp_path / "d", classes=2)
    result = CliRunner().invoke(app, ["data", "check", f"folder:{tmp_path / 'd'}@8x9"])
    assert result.exit_code == 0, result.output
    assert "1 x 8 x 9" in result.output
    arrays = {"x_train": np.zeros((10, 8, 8), np.uint8), "y_train": np.arange(10) % 2}
    np.savez(tmp_path / "own.npz", **arrays)
    result = CliRunner().invoke(app, ["data", "check", f"npz:{tmp_path / 'own.npz'}"])
    assert "Images per class" in result.output

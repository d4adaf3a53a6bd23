"""Tiny-ImageNet's official folders, against Pillow image by image."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedbnn_core.data import load_dataset
from fedbnn_core.errors import DataError

WNIDS = ["n02124075", "n01443537", "n07720875"]


def write_tiny(root: Path) -> Path:
    folder = root / "tiny-imagenet-200"
    rng = np.random.default_rng(0)

    def save(path: Path, *, grey: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (64, 64) if grey else (64, 64, 3)
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(path, "JPEG")

    for number, wnid in enumerate(WNIDS):
        for index in range(3):
            save(
                folder / "train" / wnid / "images" / f"{wnid}_{index}.JPEG",
                grey=number == index == 0,
            )
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("0 0 62 62\n")
    lines = []
    for index, wnid in enumerate([WNIDS[2], WNIDS[0], WNIDS[1], WNIDS[0]]):
        save(folder / "val" / "images" / f"val_{index}.JPEG")
        lines.append(f"val_{index}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    # The test images have no labels and are not read.
    save(folder / "test" / "images" / "test_0.JPEG")
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    words = "n01443537\tgoldfish, Carassius auratus\nn02124075\tEgyptian cat\n"
    (folder / "words.txt").write_text(words)
    return folder


def test_images_labels_and_the_validation_list(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path)
    dataset = load_dataset("tiny-imagenet", tmp_path)
    # Classes in sorted order of their ids; a missing word leaves the id.
    assert dataset.class_names == ("goldfish", "Egyptian cat", "n07720875")
    expected = []
    for label, wnid in enumerate(sorted(WNIDS)):
        for index in range(3):
            path = folder / "train" / wnid / "images" / f"{wnid}_{index}.JPEG"
            expected.append((np.asarray(Image.open(path).convert("RGB")), label))
    assert dataset.y_train.tolist() == [label for _, label in expected]
    for image, (pixels, _) in zip(dataset.x_train, expected, strict=True):
        np.testing.assert_array_equal(image.transpose(1, 2, 0), pixels)
    assert dataset.y_test.tolist() == [2, 1, 0, 1]
    pixels = np.asarray(Image.open(folder / "val" / "images" / "val_3.JPEG"))
    np.testing.assert_array_equal(dataset.x_test[3].transpose(1, 2, 0), pixels)
    assert dataset.augmentation.crop_padding == 8


def test_a_corrupt_image_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_tiny(tmp_path)
    broken = folder / "train" / WNIDS[1] / "images" / f"{WNIDS[1]}_1.JPEG"
    broken.write_bytes(broken.read_bytes()[:300])
    dataset = load_dataset("tiny-imagenet", tmp_path)
    assert dataset.y_train.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    assert len(dataset.x_train) == 8
    assert "Left out 1 unreadable" in caplog.text


def test_an_unlisted_validation_image_is_an_error(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path)
    images = folder / "val" / "images"
    (images / "extra.JPEG").write_bytes((images / "val_0.JPEG").read_bytes())
    with pytest.raises(DataError, match=r"does not list extra\.JPEG"):
        load_dataset("tiny-imagenet", tmp_path)

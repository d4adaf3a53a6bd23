"""Own images: layouts, sizes, modes and everything that goes wrong with them."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedbnn_core.data import load_dataset, load_local, split_test
from fedbnn_core.data.loading import own_data_warnings
from fedbnn_core.errors import DataError


def save(path: Path, *, size: tuple[int, int] = (40, 52), seed: int = 0) -> np.ndarray:
    """Write a grey image and return its pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def fill(root: Path, classes: int = 7, count: int = 10) -> None:
    for label in range(classes):
        for index in range(count):
            save(root / f"class {label}" / f"{index}.png", seed=100 * label + index)


def test_seven_grey_classes_of_40x52(tmp_path: Path) -> None:
    fill(tmp_path / "mine")
    dataset = load_dataset(f"folder:{tmp_path / 'mine'}")
    assert dataset.input_shape == (1, 40, 52)
    assert dataset.num_classes == 7
    # A fifth of every class is held out.
    assert np.bincount(dataset.y_train).tolist() == [8] * 7
    assert np.bincount(dataset.y_test).tolist() == [2] * 7
    pixels = np.asarray(dataset.x_train) / 255
    assert dataset.mean == pytest.approx((pixels.mean(),))
    assert dataset.std == pytest.approx((pixels.std(),))
    assert dataset.augmentation.is_identity


def test_pixels_are_those_of_the_files(tmp_path: Path) -> None:
    expected = [
        save(tmp_path / "d" / "train" / name / "x.png", seed=seed)
        for seed, name in enumerate("ab")
    ]
    test = save(tmp_path / "d" / "test" / "b" / "y.png", seed=9)
    dataset = load_dataset("folder:d", tmp_path)
    np.testing.assert_array_equal(dataset.x_train[:, 0], expected)
    np.testing.assert_array_equal(dataset.x_test[0, 0], test)
    assert dataset.y_test.tolist() == [1]


def test_the_split_is_stable(tmp_path: Path) -> None:
    fill(tmp_path / "one", classes=2, count=50)
    fill(tmp_path / "two", classes=2, count=50)
    one, two = (load_local(tmp_path / name) for name in ("one", "two"))
    np.testing.assert_array_equal(one.x_test, two.x_test)
    held_before = {image.tobytes() for image in one.x_test}
    for index in range(50, 55):
        save(tmp_path / "one" / "class 0" / f"{index}.png", seed=index + 5000)
    grown = {image.tobytes() for image in load_local(tmp_path / "one").x_test}
    # Five new files move at most a handful of old ones between train and test.
    assert len(held_before - grown) <= 5
    assert len(grown) == 21


def test_a_class_without_test_images_is_still_a_class(tmp_path: Path) -> None:
    for name in "abc":
        save(tmp_path / "d" / "train" / name / "x.png")
    save(tmp_path / "d" / "val" / "b" / "y.png")
    save(tmp_path / "d" / "val" / "c" / "y.png")
    dataset = load_dataset("folder:d", tmp_path)
    assert dataset.num_classes == 3
    assert dataset.y_test.tolist() == [1, 2]
    validation, test = split_test(dataset, seed=0)
    assert sorted([*validation, *test]) == [0, 1]
    # Either half lacks two of the three classes.
    assert len(validation) == len(test) == 1


def test_other_sizes_are_resized_to_the_most_common_one(tmp_path: Path) -> None:
    for index in range(3):
        save(tmp_path / "d" / "a" / f"{index}.png", size=(12, 20))
    constant = tmp_path / "d" / "a" / "large.png"
    Image.new("L", (80, 48), 77).save(constant)
    dataset = load_dataset("folder:d", tmp_path)
    assert dataset.input_shape == (1, 12, 20)
    everything = np.concatenate([dataset.x_train, dataset.x_test])
    assert any((image == 77).all() for image in everything)
    configured = load_dataset("folder:d", tmp_path, image_size=(9, 7))
    assert configured.input_shape == (1, 9, 7)
    assert load_dataset("folder:d@9x7", tmp_path).input_shape == (1, 9, 7)


def test_one_colour_image_makes_the_dataset_colour(tmp_path: Path) -> None:
    save(tmp_path / "d" / "train" / "a" / "grey.png", size=(4, 4))
    red = tmp_path / "d" / "train" / "b" / "red.bmp"
    red.parent.mkdir(parents=True)
    Image.new("RGB", (4, 4), (255, 0, 10)).save(red)
    save(tmp_path / "d" / "test" / "a" / "t.png", size=(4, 4))
    dataset = load_dataset("folder:d", tmp_path)
    assert dataset.input_shape == (3, 4, 4)
    assert dataset.x_train[1, :, 0, 0].tolist() == [255, 0, 10]
    grey = load_dataset("folder:d", tmp_path, channels=1)
    assert grey.input_shape == (1, 4, 4)


def test_photos_are_turned_and_16_bit_images_keep_their_upper_bits(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "d" / "a"
    folder.mkdir(parents=True)
    photo = Image.fromarray(np.zeros((4, 6, 3), dtype=np.uint8))
    photo.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter, clockwise
    photo.save(folder / "photo.png", exif=exif)
    turned = load_dataset("folder:d", tmp_path)
    assert turned.input_shape == (3, 6, 4)
    assert turned.x_train[0, 0, 0].tolist() == [0, 0, 0, 255]

    deep = np.array([[0, 255, 256], [4096, 65535, 32768]], dtype=np.uint16)
    other = tmp_path / "e" / "a"
    other.mkdir(parents=True)
    Image.fromarray(deep).save(other / "deep.png")
    dataset = load_dataset("folder:e", tmp_path)
    assert dataset.x_train[0, 0].tolist() == [[0, 0, 1], [16, 255, 128]]


def test_non_ascii_names_in_either_normal_form_are_one_class(tmp_path: Path) -> None:
    root = tmp_path / "Bilder für später 日本"
    composed = unicodedata.normalize("NFC", "Äpfel")
    decomposed = unicodedata.normalize("NFD", "Äpfel")
    save(root / "train" / composed / "größe.png")
    save(root / "train" / "梨" / "ё.png")
    save(root / "test" / decomposed / "größe.png")
    dataset = load_dataset(f"folder:{root}")
    assert dataset.class_names == (composed, "梨")
    assert dataset.y_test.tolist() == [0]


def test_corrupt_files_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "d"
    fill(root / "train", classes=2, count=4)
    fill(root / "test", classes=2, count=1)
    (root / "train" / "class 0" / "0.png").write_bytes(b"not an image")
    cut = root / "train" / "class 1" / "3.png"
    cut.write_bytes(cut.read_bytes()[:500])
    # Not images by their names: ignored without a word.
    (root / "train" / "class 1" / "notes.txt").write_text("hello")
    (root / "train" / "class 1" / ".DS_Store").write_bytes(b"\0")
    dataset = load_dataset("folder:d", tmp_path)
    assert np.bincount(dataset.y_train).tolist() == [3, 3]
    assert "Left out 2 of 8 images" in caplog.text


def test_a_device_with_some_of_the_classes_numbers_them_as_told(tmp_path: Path) -> None:
    save(tmp_path / "d" / "dog" / "1.png")
    classes = ["cat", "cow", "dog"]
    dataset = load_local(tmp_path / "d", class_names=classes)
    assert dataset.class_names == ("cat", "cow", "dog")
    assert dataset.y_train.tolist() == [2]
    assert len(dataset.y_test) == 0
    save(tmp_path / "d" / "bird" / "1.png")
    with pytest.raises(DataError, match="'bird', which is none of the classes"):
        load_local(tmp_path / "d", class_names=classes)


def test_a_changed_folder_is_read_again(tmp_path: Path) -> None:
    fill(tmp_path / "d", classes=1, count=5)
    assert len(load_dataset("folder:d", tmp_path).y_train) == 4
    save(tmp_path / "d" / "class 0" / "new.png", seed=77)
    dataset = load_dataset("folder:d", tmp_path)
    assert len(dataset.y_train) + len(dataset.y_test) == 6


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "has no class folders"),
        (["a/notes.txt"], "no image files"),
        (["a/1.png", "b/2.png"], "can be read"),
    ],
)
def test_unusable_folders_say_what_is_expected(
    files: list[str], message: str, tmp_path: Path
) -> None:
    root = tmp_path / "d"
    root.mkdir()
    for name in files:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"no image")
    with pytest.raises(DataError, match=message):
        load_dataset(f"folder:{root}")


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        load_dataset("folder:nowhere", tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="is not a folder"):
        load_dataset("folder:file", tmp_path)


def test_a_link_to_nowhere_is_left_out(tmp_path: Path) -> None:
    fill(tmp_path / "d", classes=2)
    (tmp_path / "d" / "class 0" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    dataset = load_dataset(f"folder:{tmp_path / 'd'}")
    assert len(dataset.y_train) + len(dataset.y_test) == 20


def test_skipped_photos_and_empty_classes_are_told(tmp_path: Path) -> None:
    fill(tmp_path / "d", classes=2)
    assert own_data_warnings(f"folder:{tmp_path / 'd'}@8x8") == ()
    (tmp_path / "d" / "class 1" / "IMG_1.HEIC").write_bytes(b"ftypheic")
    (tmp_path / "d" / "empty").mkdir()
    skipped, empty = own_data_warnings(f"folder:{tmp_path / 'd'}")
    assert "1 photos are skipped" in skipped
    assert "IMG_1.HEIC" in skipped
    assert empty == "class empty has no training images"
    assert own_data_warnings("fmnist-mini") == ()


def test_a_folder_of_skipped_photos_says_why_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "d" / "cats").mkdir(parents=True)
    (tmp_path / "d" / "cats" / "a.heic").write_bytes(b"x")
    with pytest.raises(DataError, match=r"a\.heic and the like are not read"):
        load_dataset(f"folder:{tmp_path / 'd'}")

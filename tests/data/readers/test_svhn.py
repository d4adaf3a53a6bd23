"""SVHN .mat files against torchvision's reader."""

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from fedbnn_core.data import load_dataset
from fedbnn_core.data.readers import svhn as svhn_reader
from fedbnn_core.data.torchvision_compat import import_torchvision
from fedbnn_core.errors import DataError


def write_svhn(root: Path) -> None:
    folder = root / "svhn"
    folder.mkdir(parents=True)
    for seed, split in enumerate(("train", "test")):
        rng = np.random.default_rng(seed)
        images = rng.integers(0, 256, (32, 32, 3, 12), dtype=np.uint8)
        # As published: the digit 0 has the label 10.
        labels = np.array([*range(1, 11), 10, 3], dtype=np.uint8)[:, None]
        savemat(
            folder / f"{split}_32x32.mat",
            {"X": images, "y": labels},
            do_compression=True,
        )


def test_agrees_with_torchvision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_svhn(tmp_path)
    svhn = import_torchvision("torchvision.datasets.svhn")
    monkeypatch.setattr(svhn, "check_integrity", lambda *_: True)
    dataset = load_dataset("svhn", tmp_path)
    for split, x, y in (
        ("train", dataset.x_train, dataset.y_train),
        ("test", dataset.x_test, dataset.y_test),
    ):
        expected = svhn.SVHN(str(tmp_path / "svhn"), split=split)
        np.testing.assert_array_equal(x, expected.data)
        assert y.tolist() == expected.labels.tolist()
    assert dataset.y_train.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 3]


def test_one_mean_for_all_channels_and_the_faithful_pair(tmp_path: Path) -> None:
    write_svhn(tmp_path)
    plain = load_dataset("svhn", tmp_path)
    assert plain.mean == plain.test_mean == (0.4496,) * 3
    assert plain.std == plain.test_std == (0.1995,) * 3
    faithful = load_dataset("svhn", tmp_path, faithful_test_statistics=True)
    assert faithful.mean == (0.4496,) * 3
    assert faithful.test_mean == (0.4560,) * 3
    assert faithful.test_std == (0.2244,) * 3


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    write_svhn(tmp_path)
    path = tmp_path / "svhn" / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"test_32x32.mat.*get svhn again"):
        load_dataset("svhn", tmp_path)


def test_a_file_that_promises_too_much_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_svhn(tmp_path)
    # 12 images and as many labels are promised.
    monkeypatch.setattr(svhn_reader, "_MAX_VALUES", 12 * (32 * 32 * 3 + 1) - 1)
    with pytest.raises(DataError, match="promises 36876 values"):
        load_dataset("svhn", tmp_path)

"""Names, folders and what is said when something is missing."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.data import data_folder, dataset_names, load_dataset
from fedbnn_core.errors import DataError


def test_an_unknown_name_lists_the_valid_ones() -> None:
    with pytest.raises(DataError, match=r"'mnist'.*fmnist-mini, fmnist, svhn, cifar10"):
        load_dataset("mnist")
    assert set(dataset_names()) == {
        "fmnist-mini",
        "fmnist",
        "svhn",
        "cifar10",
        "cifar100",
        "tiny-imagenet",
        "femnist",
        "emnist-letters",
        "folder:PATH",
        "npz:PATH",
    }


@pytest.mark.parametrize("name", ["svhn", "cifar10", "femnist"])
def test_missing_data_says_where_it_was_looked_for(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"fedbnn data get {name}") as caught:
        load_dataset(name, tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_options_for_own_data_are_refused_elsewhere() -> None:
    with pytest.raises(DataError, match="image_size"):
        load_dataset("fmnist-mini", image_size=(8, 8))
    with pytest.raises(DataError, match="class_names"):
        load_dataset("fmnist-mini", class_names=["a"])


def test_a_second_load_is_the_same_object() -> None:
    assert load_dataset("fmnist-mini") is load_dataset("fmnist-mini")


def test_any_dataset_may_come_as_npz(tmp_path: Path) -> None:
    images = np.zeros((4, 32, 32, 3), dtype=np.uint8)
    labels = np.array([0, 1, 2, 99])
    np.savez(
        tmp_path / "cifar100.npz",
        x_train=images,
        y_train=labels,
        x_test=images,
        y_test=labels,
        class_names=np.array([f"c{i}" for i in range(100)]),
    )
    dataset = load_dataset("cifar100", tmp_path)
    assert dataset.num_classes == 100
    assert dataset.mean == (0.5071, 0.4865, 0.4409)


def test_where_datasets_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_folder("/x") == Path("/x")
    monkeypatch.setenv("FEDBNN_DATA", "/a")
    assert data_folder() == Path("/a")
    monkeypatch.delenv("FEDBNN_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", "/b")
    assert data_folder() == Path("/b/fedbnn")


def test_an_empty_home_and_no_torch_are_enough(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['flwr'] = None\n"
        "from fedbnn_core.data import load_dataset\n"
        "print(load_dataset('fmnist-mini').x_train.shape)\n"
    )
    environment = {"HOME": str(tmp_path), "PATH": ""}
    printed = subprocess.check_output(
        [sys.executable, "-c", code],
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    assert printed.strip() == "(10000, 1, 28, 28)"

"""Batches against per-image loops written here."""

import numpy as np
import pytest
import torch

from fedbnn_core.data import Augmentation
from fedbnn_core.data import batches as batches_module
from fedbnn_core.data.batches import ClientData, batch_sizes
from fedbnn_core.errors import ConfigError

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def random_images(count: int, channels: int = 3, size: int = 8) -> np.ndarray:
    rng = np.random.default_rng(count)
    return rng.integers(0, 256, (count, channels, size, size), dtype=np.uint8)


def reference_normalize(image: np.ndarray) -> np.ndarray:
    """One image, channel by channel, in float64."""
    planes = [(p / 255 - m) / s for p, m, s in zip(image, MEAN, STD, strict=True)]
    return np.stack(planes)


def collect(data: ClientData, batch_size: int, seed: int) -> tuple[np.ndarray, ...]:
    batches = list(data.epoch(batch_size, seed))
    images = torch.cat([x for x, _ in batches]).numpy()
    labels = torch.cat([y for _, y in batches]).numpy()
    return images, labels


@pytest.fixture(params=["float cache", "uint8"])
def storage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with images kept as floats and as bytes."""
    if request.param == "uint8":
        monkeypatch.setattr(batches_module, "_FLOAT_CACHE_BYTES", 0)


@pytest.mark.usefixtures("storage")
def test_an_epoch_is_a_normalized_permutation() -> None:
    images = random_images(37)
    # The label names the image, so that each can be compared with its original.
    data = ClientData(images, np.arange(37), MEAN, STD)
    x, y = collect(data, 8, seed=1)
    assert sorted(y.tolist()) == list(range(37))
    assert y.tolist() != list(range(37))
    assert x.dtype == np.float32
    assert y.dtype == np.int64
    for got, label in zip(x, y, strict=True):
        np.testing.assert_allclose(got, reference_normalize(images[label]), atol=2e-6)


@pytest.mark.usefixtures("storage")
def test_every_augmented_image_is_a_shifted_and_maybe_mirrored_original() -> None:
    images = random_images(60)
    data = ClientData(
        images, np.arange(60), MEAN, STD, augmentation=Augmentation(2, True)
    )
    seen: list[tuple[int, int, bool]] = []
    for seed in range(6):
        for got, label in zip(*collect(data, 16, seed), strict=True):
            framed = np.pad(images[label], ((0, 0), (2, 2), (2, 2)))
            matches = [
                (dy, dx, mirrored)
                for dy in range(5)
                for dx in range(5)
                for mirrored in (False, True)
                if np.allclose(
                    got,
                    reference_normalize(
                        framed[:, dy : dy + 8, dx : dx + 8][
                            :, :, :: -1 if mirrored else 1
                        ]
                    ),
                    atol=2e-6,
                )
            ]
            assert len(matches) == 1
            seen += matches
    # 360 draws over 50 outcomes: each expected 7 times, half of them mirrored.
    assert len(set(seen)) == 50
    assert 140 < sum(mirrored for *_, mirrored in seen) < 220
    for axis in (0, 1):
        counts = np.bincount([outcome[axis] for outcome in seen], minlength=5)
        assert counts.min() > 45
        assert counts.max() < 100


@pytest.mark.usefixtures("storage")
def test_the_seed_alone_fixes_order_and_augmentation() -> None:
    data = ClientData(
        random_images(50), np.arange(50), MEAN, STD, augmentation=Augmentation(1, True)
    )
    first, again, other = (collect(data, 16, seed) for seed in (3, 3, 4))
    torch.manual_seed(99)
    after_global_seed = collect(data, 16, 3)
    for same in (again, after_global_seed):
        np.testing.assert_array_equal(first[0], same[0])
        np.testing.assert_array_equal(first[1], same[1])
    assert not np.array_equal(first[1], other[1])


def test_only_cropping_or_only_flipping() -> None:
    images = random_images(40)
    flipped = ClientData(
        images, np.arange(40), MEAN, STD, augmentation=Augmentation(0, True)
    )
    kept = 0
    for got, label in zip(*collect(flipped, 16, 0), strict=True):
        plain = reference_normalize(images[label])
        if np.allclose(got, plain, atol=2e-6):
            kept += 1
        else:
            np.testing.assert_allclose(got, plain[:, :, ::-1], atol=2e-6)
    assert 8 < kept < 32
    cropped = ClientData(
        images, np.arange(40), MEAN, STD, augmentation=Augmentation(3, False)
    )
    assert collect(cropped, 16, 0)[0].shape == (40, 3, 8, 8)


def test_rectangular_grey_images() -> None:
    images = np.random.default_rng(0).integers(0, 256, (9, 1, 40, 52), dtype=np.uint8)
    data = ClientData(
        images, np.arange(9), (0.5,), (0.5,), augmentation=Augmentation(4)
    )
    assert collect(data, 4, 0)[0].shape == (9, 1, 40, 52)


@pytest.mark.parametrize(
    ("samples", "batch", "expected"),
    [
        (0, 4, []),
        (1, 4, [2]),
        (2, 4, [2]),
        (4, 4, [4]),
        (5, 4, [5]),
        (6, 4, [4, 2]),
        (9, 4, [4, 5]),
        (3, 2, [3]),
    ],
)
def test_no_batch_holds_one_sample(
    samples: int, batch: int, expected: list[int]
) -> None:
    assert batch_sizes(samples, batch) == expected
    data = ClientData(
        random_images(samples),
        np.arange(samples),
        MEAN,
        STD,
        augmentation=Augmentation(1, True),
    )
    assert [len(y) for _, y in data.epoch(batch, 0)] == expected
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(192))
    for x, _ in data.epoch(batch, 0):
        assert torch.isfinite(network(x)).all()


def test_a_batch_size_below_two_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        batch_sizes(10, 1)


def test_the_source_is_copied_not_kept() -> None:
    images = random_images(6)
    # Read-only, as a memory map is.
    images.flags.writeable = False
    data = ClientData(images, np.zeros(6), MEAN, STD)
    for x, _ in data.epoch(4, 0):
        x.zero_()
    assert images.any()
    assert all(x.any() for x, _ in data.epoch(4, 0))

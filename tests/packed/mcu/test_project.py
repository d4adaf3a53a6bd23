"""The project for any C11 compiler: same bits as the reference, no undefined behaviour.

The sources are those that chips run; the sanitizers are the host's.
"""

from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.errors import FedBNNError
from fedbnn_core.networks import ModelSpec
from fedbnn_core.packed import PackedModel
from fedbnn_core.packed.builder import GraphBuilder
from fedbnn_core.packed.encode import encode
from fedbnn_core.packed.graph import Graph, Kind
from fedbnn_core.packed.mcu.project import NETWORK_FILES, TARGETS, write_project
from tests.packed.graphs import Conv, conv_graph, everything, finish, floats
from tests.packed.mcu.projects import need, random_network, run_project, test_images

SANITIZED = "CFLAGS=-g -fsanitize=address,undefined -fno-sanitize-recover=all"
PLAIN = "CFLAGS="
RANDOM_CONVS = [
    Conv(7, 5, 1, 32, 3, padding=1),
    Conv(6, 6, 3, 5, 3, stride=2, padding=1),
    Conv(5, 6, 8, 9, 5, padding=4),
    Conv(4, 4, 16, 16, 1, stride=2),
    Conv(5, 5, 37, 11, 3, stride=3, padding=2),
    Conv(5, 4, 12, 12, 3, padding=1, depthwise=True),
]


def pooled_graph(kernel: int, stride: int, *, floats_out: bool) -> Graph:
    """Return a convolution, a pooling layer that takes its rows, and a head."""
    rng = np.random.default_rng(kernel)
    builder = GraphBuilder()
    image = builder.add(Kind.INPUT, 2)
    conv = builder.add(
        Kind.CONV,
        8,
        image,
        kernel=(3, 3),
        stride=1,
        padding=(1, 1, 1, 1),
        weight=floats(rng, 3, 3, 2, 8),
    )
    kind = Kind.MAXPOOL if floats_out else Kind.BITPOOL
    pooled = builder.add(kind, 8, conv, kernel=(kernel, kernel), stride=stride)
    height = (11 - kernel) // stride + 1
    width = (10 - kernel) // stride + 1
    if not floats_out:
        bits = np.packbits(rng.random((8, 8)) < 0.5, axis=None, bitorder="little")
        pooled = builder.add(Kind.BCONV, 8, pooled, kernel=(1, 1), stride=1, bits=bits)
    return finish(builder, pooled, (11, 10, 2), height * width * 8, rng)


def image_graph() -> Graph:
    """Return a linear layer on the image itself."""
    builder = GraphBuilder()
    image = builder.add(Kind.INPUT, 3)
    return finish(builder, image, (4, 5, 3), 60, np.random.default_rng(1))


def _check(
    graph: Graph, folder: Path, *command: str, count: int = 20, kernel: str = "numpy"
) -> None:
    data = encode(graph)
    write_project(data, folder, "bare")
    images = test_images(graph, count)
    logits, _ = run_project(folder, images, len(graph.class_names), *command)
    expected = PackedModel(data, kernel=kernel).logits(images)
    assert np.array_equal(logits.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("case", RANDOM_CONVS, ids=str)
def test_binary_convolutions(case: Conv, tmp_path: Path) -> None:
    need("make", "gcc")
    graph, _ = conv_graph(case, np.random.default_rng(8))
    _check(graph, tmp_path, "run", "CC=gcc", SANITIZED)


@pytest.mark.parametrize("floats_out", [True, False], ids=["floats", "bits"])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (2, 3)])
def test_pooling_takes_rows(
    kernel: int, stride: int, floats_out: bool, tmp_path: Path
) -> None:
    need("make", "gcc")
    graph = pooled_graph(kernel, stride, floats_out=floats_out)
    _check(graph, tmp_path, "run", "CC=gcc", SANITIZED)


@pytest.mark.parametrize("channels", [8, 13])
def test_every_operation(channels: int, tmp_path: Path) -> None:
    need("make", "gcc")
    graph = everything(channels, np.random.default_rng(channels), layer_norm=False)
    _check(graph, tmp_path, "run", "CC=gcc", SANITIZED)


def test_image_without_convolution(tmp_path: Path) -> None:
    need("make", "gcc")
    _check(image_graph(), tmp_path, "run", "CC=gcc", SANITIZED)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("int8_head", [False, True], ids=["float head", "int8 head"])
def test_cnn4_on_all_embedded_test_images(
    compiler: str, int8_head: bool, tmp_path: Path
) -> None:
    need("make", compiler)
    graph = random_network(ModelSpec("cnn4", (1, 28, 28), 10), int8_head=int8_head)
    _check(graph, tmp_path, "run", f"CC={compiler}", PLAIN, count=2000, kernel="auto")


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        (ModelSpec("cnn4", (1, 28, 28), 10), 40),
        (ModelSpec("resnet10", (3, 32, 32), 10, width=16), 2),
    ],
    ids=["cnn4", "resnet10"],
)
def test_networks_under_the_sanitizers(
    spec: ModelSpec, count: int, tmp_path: Path
) -> None:
    need("make", "gcc")
    _check(random_network(spec), tmp_path, "run", "CC=gcc", SANITIZED, count=count)


@pytest.mark.parametrize("name", ['say "a"', "b\\n ??/", "ç %s"])
def test_names_of_classes_survive_c(name: str, tmp_path: Path) -> None:
    need("make", "gcc")
    graph = everything(8, np.random.default_rng(0), layer_norm=False)
    graph.class_names[:] = [f"{name} {number}" for number in range(3)]
    data = encode(graph)
    write_project(data, tmp_path, "bare")
    images = test_images(graph, 1)
    _, printed = run_project(tmp_path, images, 3, "run", "CC=gcc")
    (label,) = PackedModel(data, kernel="numpy").predict(images)
    assert printed["class of the last image"] == f"{name} {label}"


@pytest.mark.parametrize("target", TARGETS)
def test_changed_files_are_kept(target: str, tmp_path: Path) -> None:
    data = encode(everything(8, np.random.default_rng(0), layer_norm=False))
    first = write_project(data, tmp_path, target)
    assert {path.name for path in first} >= set(NETWORK_FILES)
    (tmp_path / "main.c").write_text("mine")
    (tmp_path / "network.c").write_text("old")
    second = write_project(data, tmp_path, target)
    assert tmp_path / "main.c" not in second
    assert (tmp_path / "main.c").read_text() == "mine"
    assert (tmp_path / "network.c").read_text() != "old"


def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    data = encode(everything(8, np.random.default_rng(0), layer_norm=False))
    (tmp_path / "Makefile").write_text("all:\n")
    with pytest.raises(FedBNNError, match="another program"):
        write_project(data, tmp_path, "bare")
    write_project(data, tmp_path / "arm", "cortex-m")
    with pytest.raises(FedBNNError, match="another target"):
        write_project(data, tmp_path / "arm", "bare")
    with pytest.raises(FedBNNError, match="cortex-m, riscv, bare"):
        write_project(data, tmp_path / "x", "avr")

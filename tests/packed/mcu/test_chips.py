"""Images for chips: built without a warning, run in an emulator, same bits as here."""

import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.networks import ModelSpec
from fedbnn_core.packed import PackedModel
from fedbnn_core.packed.encode import encode
from fedbnn_core.packed.graph import Graph
from fedbnn_core.packed.mcu.project import write_project
from fedbnn_core.packed.mcu.sizes import CODE_BYTES, STACK_BYTES, chip_sizes
from tests.packed.mcu.projects import need, random_network, run_project, test_images

CNN4 = ModelSpec("cnn4", (1, 28, 28), 10)
RESNET = ModelSpec("resnet10", (3, 32, 32), 10, width=16)
MOST_FLASH = 70_000
MOST_ARENA = 12 * 1024
# Routines of libgcc for doubles, and what needs a heap or files.
FORBIDDEN = re.compile(
    r"__aeabi_(d|f2d|i2d|ui2d|l2d|ul2d)|__\w+df\d?$|malloc|_sbrk|fopen|printf"
)


@dataclass(frozen=True)
class Chip:
    """A target and how its tools are called."""

    target: str
    options: tuple[str, ...]
    tools: str
    emulator: str
    build: str


CHIPS = {
    **{
        name: Chip(
            "cortex-m",
            (f"CHIP={name}",),
            "arm-none-eabi-",
            "qemu-system-arm",
            f"build/{name}",
        )
        for name in ("m0plus", "m4", "m7")
    },
    "rv32": Chip(
        "riscv", (), "riscv64-unknown-elf-", "qemu-system-riscv32", "build/rv32"
    ),
}


@pytest.fixture(scope="module")
def cnn4() -> Graph:
    return random_network(CNN4, int8_head=True)


@pytest.fixture(scope="module", params=CHIPS)
def built(
    request: pytest.FixtureRequest,
    cnn4: Graph,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Chip, Path]:
    """Return a chip and the folder of CNN4's image for it."""
    chip = CHIPS[request.param]
    need("make", f"{chip.tools}gcc", chip.emulator)
    folder = tmp_path_factory.mktemp(request.param)
    write_project(encode(cnn4), folder, chip.target)
    # -Wall -Wextra -Werror are in the Makefile.
    subprocess.run(
        ["make", "-s", *chip.options, "CFLAGS=-fcallgraph-info=su"],
        cwd=folder,
        check=True,
    )
    return chip, folder


def _bytes(chip: Chip, folder: Path, file: str) -> tuple[int, int]:
    """Return (text + data, bss) of an object file or image."""
    done = subprocess.run(
        [f"{chip.tools}size", folder / chip.build / file],
        capture_output=True,
        text=True,
        check=True,
    )
    text, data, bss = map(int, done.stdout.splitlines()[1].split()[:3])
    return text + data, bss


def _compare(chip: Chip, folder: Path, graph: Graph, count: int) -> dict[str, str]:
    """Run images on the chip and compare; return what the chip printed."""
    images = test_images(graph, count)
    model = PackedModel(encode(graph))
    logits, printed = run_project(folder, images, 10, "qemu", *chip.options)
    expected = model.logits(images)
    assert np.array_equal(logits.view(np.uint32), expected.view(np.uint32))
    assert printed["images"] == str(count)
    last = model.class_names[model.predict(images)[-1]]
    assert printed["class of the last image"] == last
    return printed


def test_cnn4_gives_the_same_bits(built: tuple[Chip, Path], cnn4: Graph) -> None:
    printed = _compare(*built, cnn4, 60)
    assert int(printed["arena bytes"]) <= MOST_ARENA
    # Measured: what the stack had overwritten at the end.
    assert 0 < int(printed["stack bytes"]) <= STACK_BYTES
    # Less than one instruction per multiplication, counted by the emulator.
    assert 0 < int(printed["instructions"]) < 10_107_904


@pytest.mark.deploy
def test_cnn4_gives_the_same_bits_for_all_test_images(
    built: tuple[Chip, Path], cnn4: Graph
) -> None:
    _compare(*built, cnn4, 2000)


def test_sizes_are_those_of_the_export(built: tuple[Chip, Path], cnn4: Graph) -> None:
    sizes = chip_sizes(cnn4)
    flash, arena = _bytes(*built, "network.o")
    assert flash <= sizes.network_bytes <= flash + 64
    assert arena == sizes.arena_bytes
    image, _ = _bytes(*built, "image.elf")
    demo = sum(_bytes(*built, file)[0] for file in ("main.o", "board.o"))
    assert image - flash - demo <= CODE_BYTES
    # The whole image: network, kernels, start-up code and the demonstration.
    assert image <= MOST_FLASH


def test_image_has_no_doubles_heap_or_files(built: tuple[Chip, Path]) -> None:
    chip, folder = built
    done = subprocess.run(
        [f"{chip.tools}nm", folder / chip.build / "image.elf"],
        capture_output=True,
        text=True,
        check=True,
    )
    symbols = [line.split()[-1] for line in done.stdout.splitlines()]
    assert "fbnn_predict" in symbols
    assert [name for name in symbols if FORBIDDEN.search(name)] == []


def test_stack_is_bounded(built: tuple[Chip, Path]) -> None:
    """No recursion, no frame of unknown size; libgcc's routines come on top."""
    chip, folder = built
    graph = (folder / chip.build / "fbnn.ci").read_text()
    frames = {
        name: int(size)
        for name, size in re.findall(
            r'node: \{ title: "([^"]+)" label: "[^"]*?\\n(\d+) bytes \(static\)', graph
        )
    }
    calls = defaultdict(set)
    for caller, callee in re.findall(
        r'sourcename: "([^"]+)" targetname: "([^"]+)"', graph
    ):
        calls[caller].add(callee)
    assert "(dynamic" not in graph

    def depth(name: str, above: tuple[str, ...]) -> int:
        assert name not in above, f"{name} calls itself"
        below = [depth(callee, (*above, name)) for callee in calls[name]]
        return frames.get(name, 0) + max(below, default=0)

    entry = next(name for name in frames if name.endswith("fbnn_predict"))
    assert 0 < depth(entry, ()) <= STACK_BYTES - 256


def test_resnet10_runs_on_a_cortex_m7(tmp_path: Path) -> None:
    chip = CHIPS["m7"]
    need("make", f"{chip.tools}gcc", chip.emulator)
    graph = random_network(RESNET)
    write_project(encode(graph), tmp_path, chip.target)
    printed = _compare(chip, tmp_path, graph, 2)
    sizes = chip_sizes(graph)
    assert int(printed["arena bytes"]) == sizes.arena_bytes
    flash, _ = _bytes(chip, tmp_path, "network.o")
    assert flash <= sizes.network_bytes <= flash + 64


def test_pattern_without_images(built: tuple[Chip, Path]) -> None:
    chip, folder = built
    (folder / "images.raw").unlink(missing_ok=True)
    done = subprocess.run(
        ["make", "-s", "qemu", *chip.options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "class of the last image: class " in done.stdout + done.stderr

"""The runtime compiled for this CPU and for 64-bit ARM, on many graphs, bit for bit."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.packed import PackedModel
from fedbnn_core.packed.c_program import runtime_sources
from fedbnn_core.packed.encode import encode
from fedbnn_core.packed.graph import Graph
from fedbnn_core.speed.runtimes import packed_bytes
from tests.packed.graphs import Conv, conv_graph, everything
from tests.packed.test_c_program import ARM
from tests.packed.test_kernels import CASES

IMAGES = 3


def graphs() -> list[Graph]:
    """Return every case of the kernel tests and many odd sizes."""
    rng = np.random.default_rng(11)
    odd = [
        Conv(33, 5, channels, out_channels, 3, stride, 1)
        for channels in (1, 3, 7, 8, 12)
        for out_channels in (1, 17, 35)
        for stride in (1, 2, 3)
    ]
    odd += [
        Conv(17, 3, channels, 9, kernel, stride, kernel - 1)
        for channels in (2, 7)
        for kernel in (5, 13)
        for stride in (1, 8)
    ]
    sizes = (1, 2, 5, 8, 9, 16, 17, 31, 33, 65, 130)
    return [
        *(conv_graph(case, rng)[0] for case in [*CASES, *odd]),
        *(everything(channels, rng) for channels in sizes),
    ]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """Return a folder with models, images and their list, and the expected logits."""
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(12)
    files = [encode(graph) for graph in graphs()] + [packed_bytes("cnn4", (1, 28, 28))]
    lines, expected = [], []
    for number, data in enumerate(files):
        reference = PackedModel(data, kernel="numpy")
        channels, height, width = reference.input_shape
        shape = (IMAGES, height, width, channels)
        images = rng.integers(0, 256, shape, dtype=np.uint8)
        expected.append(reference.logits(images, layout="NHWC").tobytes())
        (folder / f"{number}.fbnn").write_bytes(data)
        (folder / f"{number}.raw").write_bytes(images.tobytes())
        lines.append(f"{number}.fbnn {number}.raw {IMAGES} {number}.logits\n")
    (folder / "list").write_text("".join(lines))
    return folder, expected


@pytest.mark.parametrize(
    ("compiler", "emulator", "runs"),
    [
        ("gcc", [], [("portable", 1), ("portable", 3)]),
        ("aarch64-linux-gnu-gcc", ARM, [("neon", 1), ("neon", 5), ("portable", 2)]),
    ],
    ids=["gcc", "aarch64"],
)
def test_every_graph_gives_the_bits_of_the_reference(
    compiler: str,
    emulator: list[str],
    runs: list[tuple[str, int]],
    models: tuple[Path, list[bytes]],
    tmp_path: Path,
) -> None:
    for tool in (compiler, *emulator[:1]):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (make system-deps installs it)")
    folder, expected = models
    sources = [path for path in runtime_sources() if path.suffix == ".c"]
    program = tmp_path / "run_models"
    flags = ["-std=c11", "-O2", "-ffp-contract=off", f"-I{sources[0].parent}"]
    driver = Path(__file__).with_name("run_models.c")
    command = [compiler, *flags, "-o", program, driver, *sources, "-lm", "-pthread"]
    subprocess.run(command, check=True)
    for kernel, threads in runs:
        for path in folder.glob("*.logits"):
            path.unlink()
        run = [*emulator, program, kernel, str(threads), "list"]
        subprocess.run(run, cwd=folder, check=True)
        wrong = [
            number
            for number, logits in enumerate(expected)
            if (folder / f"{number}.logits").read_bytes() != logits
        ]
        assert not wrong, (kernel, threads)

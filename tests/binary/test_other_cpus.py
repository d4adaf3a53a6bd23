"""The training kernels compiled for this CPU and for 64-bit ARM: the same bits."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    ROOT / "tests/binary/run_kernels.c",
    *(
        source
        for source in sorted((ROOT / "fedbnn_core/binary/csrc").glob("*.c"))
        if not source.name.startswith("py")
    ),
    ROOT / "fedbnn_core/packed/csrc/gather.c",
    *sorted((ROOT / "fedbnn_core/packed/csrc").glob("kernel_*.c")),
]
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]


def outputs(folder: Path, compiler: str, emulator: list[str]) -> dict[str, str]:
    """Compile the program; return what every kernel set prints."""
    program = folder / compiler
    command = [compiler, *FLAGS, *map(str, SOURCES), "-static", "-lm", "-o"]
    subprocess.run([*command, str(program)], check=True)

    def run(*arguments: str) -> str:
        return subprocess.check_output([*emulator, str(program), *arguments], text=True)

    return {name: run(name) for name in run().split()}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    return outputs(tmp_path_factory.mktemp("here"), "gcc", [])


def test_all_kernel_sets_of_this_cpu_agree(here: dict[str, str]) -> None:
    assert "portable" in here
    assert len(set(here.values())) == 1
    assert len(set(here["portable"].splitlines())) == 46


def test_arm_gives_the_same_bits(here: dict[str, str], tmp_path: Path) -> None:
    compiler, emulator = "aarch64-linux-gnu-gcc", "qemu-aarch64"
    if shutil.which(compiler) is None or shutil.which(emulator) is None:
        pytest.skip(f"needs {compiler} and {emulator}")
    there = outputs(tmp_path, compiler, [emulator])
    assert set(there) == {"neon", "portable"}
    assert set(there.values()) == {here["portable"]}

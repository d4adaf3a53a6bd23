"""The fuzzer as `make fuzz` builds it, for a short while."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The reader bounds memory part by part (FBNN_MAX_MEMORY); this limit stops a runaway.
LIMITS = ["-runs=20000", "-max_len=4096", "-timeout=20", "-rss_limit_mb=4096"]
INSTALL = "is not installed (make system-deps installs it)"


def build_command() -> list[str]:
    """Return the compiler's command of the Makefile."""
    listed = subprocess.run(
        ["make", "-n", "fuzz"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.replace("\\\n", " ")
    (line,) = [line for line in listed.splitlines() if line.startswith("clang ")]
    return shlex.split(line)


def test_fuzzer_builds_and_finds_nothing_in_some_seconds(tmp_path: Path) -> None:
    for tool in ("clang", "make"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} {INSTALL}")
    empty = tmp_path / "empty.c"
    empty.write_text(
        "int LLVMFuzzerTestOneInput(const char *data, unsigned long size);\n"
        "int LLVMFuzzerTestOneInput(const char *data, unsigned long size)\n"
        "{ (void)data, (void)size; return 0; }\n"
    )
    sanitizers = "-fsanitize=fuzzer,address,undefined"
    probe = ["clang", sanitizers, empty, "-o", tmp_path / "empty"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip(f"clang's runtime library {INSTALL}")

    command = build_command()
    assert sanitizers in command
    command[command.index("-o") + 1] = str(tmp_path / "fuzz")
    subprocess.run(command, cwd=ROOT, check=True)
    seeds = [sys.executable, "-m", "tests.packed.fuzz.seeds", tmp_path / "seeds"]
    subprocess.run(seeds, cwd=ROOT, check=True)
    done = subprocess.run(
        [tmp_path / "fuzz", *LIMITS, "seeds"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Done 20000 runs" in done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason=f"make {INSTALL}")
def test_system_deps_bring_the_fuzzers_runtime() -> None:
    """Clang only recommends it, and recommendations are left out."""
    listed = subprocess.run(
        ["make", "-n", "system-deps"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert {"clang", "libclang-rt-dev"} <= set(listed.split())

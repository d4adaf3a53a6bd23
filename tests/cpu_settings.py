"""Run the tests whose thresholds depend on training as other CPUs would round.

`make test-cpus` runs this. Each pair limits the instructions of torch's own kernels
and of oneDNN; a pair that this CPU lacks is skipped with a line that says so.
"""

import os
import subprocess
import sys

# From the least to the most; torch tells which of them this CPU has.
SETTINGS = {
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
}


def best_capability() -> str:
    """Return what torch uses on this CPU when nothing limits it."""
    names = {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"}
    ask = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    answer = subprocess.run(
        [sys.executable, "-c", ask],
        env={name: value for name, value in os.environ.items() if name not in names},
        capture_output=True,
        text=True,
        check=True,
    )
    return answer.stdout.strip().lower()


def main(arguments: list[str]) -> int:
    """Run the tests under every setting; return how many settings failed."""
    names, best = list(SETTINGS), best_capability()
    has = names.index(best) if best in names else 0
    failed = 0
    for index, settings in enumerate(SETTINGS.values()):
        words = " ".join(f"{key}={value}" for key, value in settings.items())
        if index > has:
            print(f"skipped, this CPU lacks it: {words}", flush=True)
            continue
        print(words, flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-m", "cpu_settings"]
        paths = ["tests/aggregation", "tests/data", "tests/methods", "tests/training"]
        done = subprocess.run(
            [*command, *paths, *arguments], env=os.environ | settings, check=False
        )
        failed += done.returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Where training goes, and why; freed memory stays with the process."""

import subprocess
import sys

import pytest
import torch

from fedbnn_core.errors import ConfigError
from fedbnn_core.training.device import (
    choose_device,
    explain_device,
    keep_freed_memory,
    set_deterministic,
)

CHILD = """
import resource, sys
if sys.argv[1] == "keep":
    from fedbnn_core.training.device import keep_freed_memory
    keep_freed_memory()
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def step():
    blocks = [libc.malloc(40 * 2**20) for _ in range(2)]
    for block in blocks:
        ctypes.memset(block, 1, 40 * 2**20)
        libc.free(block)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode):
    done = subprocess.run(
        [sys.executable, "-c", CHILD, mode], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not keep_freed_memory(), reason="no glibc here")
def test_repeated_allocations_cost_no_page_faults():
    assert faults("keep") < 100
    assert faults("default") > 10 * faults("keep")


def test_the_cpu_is_taken_at_its_word() -> None:
    choice = explain_device("cpu")
    assert choice.device == torch.device("cpu")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is one")
def test_without_an_accelerator_auto_is_the_cpu_and_says_why() -> None:
    choice = explain_device("auto")
    assert choice.device == torch.device("cpu")
    assert choice.reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_device_that_cannot_train_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*cannot train here: .*CUDA"):
        choose_device(name)


def test_a_word_that_is_no_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be auto, cpu, cuda"):
        choose_device("gpu please")


def test_the_only_visible_gpu_has_the_number_0(monkeypatch) -> None:
    monkeypatch.setenv("FEDBNN_ONLY_GPU", "cpu:3")
    assert choose_device("cpu:3") == torch.device("cpu")


def test_an_unproven_accelerator_is_left_alone(monkeypatch) -> None:
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda **_: torch.device("mps")
    )
    choice = explain_device("auto")
    assert choice.device == torch.device("cpu")
    assert "unproven" in choice.reason


def test_an_accelerator_that_fails_a_step_is_left_alone(monkeypatch) -> None:
    # Meta tensors take every operation and have no values.
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda **_: torch.device("meta")
    )
    choice = explain_device("auto")
    assert choice.device == torch.device("cpu")
    assert "meta fails a small training step" in choice.reason


def test_deterministic_mode_is_torchs_own() -> None:
    try:
        set_deterministic()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True

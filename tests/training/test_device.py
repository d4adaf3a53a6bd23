"""Freed memory stays with the process: page faults are counted by the system."""

import subprocess
import sys

import pytest
import torch

from fedbnn_core.errors import ConfigError
from fedbnn_core.training.device import choose_device, keep_freed_memory

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


def test_device_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="set device to 'auto' or 'cpu'"):
        choose_device("cuda:99")
    assert choose_device("cpu") == torch.device("cpu")

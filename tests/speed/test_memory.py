"""Memory that the runtimes hold, against the size of their weights."""

from pathlib import Path

import pytest

from fedbnn_core.speed.memory import peak_memory


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_memory_is_that_of_the_weights_at_least_and_little_more() -> None:
    sizes = peak_memory("cnn4")
    # 390,880 numbers: 0.06 MB packed, 1.56 MB as float32.
    assert sizes["packed"] is not None
    assert sizes["packed"] < 1.5e6
    assert sizes["torch_fp32"] is not None
    assert 1.5e6 < sizes["torch_fp32"] < 30e6

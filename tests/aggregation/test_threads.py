"""Work in threads: the order of results, and torch's settings."""

import threading

import pytest
import torch

from fedbnn_core.aggregation.threads import map_in_threads


def test_results_keep_the_order_and_torch_its_threads():
    before = torch.get_num_threads()
    seen = map_in_threads(lambda n: (n * n, torch.get_num_threads()), range(50))
    assert [square for square, _ in seen] == [n * n for n in range(50)]
    assert {threads for _, threads in seen} == {1}
    assert torch.get_num_threads() == before


def test_work_leaves_the_calling_thread():
    assert threading.get_ident() not in map_in_threads(
        lambda _: threading.get_ident(), range(4)
    )


def test_errors_come_out_and_settings_are_restored():
    before = torch.get_num_threads()

    def fail(n):
        raise ValueError(f"piece {n}")

    with pytest.raises(ValueError, match="piece 0"):
        map_in_threads(fail, range(3))
    assert torch.get_num_threads() == before

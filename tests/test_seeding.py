"""Seeds derived from a position in a run."""

import subprocess
import sys

import numpy as np
import torch

from fedbnn_core.seeding import derive_seed


def test_positions_get_distinct_seeds_that_generators_accept() -> None:
    seeds = {
        derive_seed(seed, round_number, client, epoch)
        for seed in range(5)
        for round_number in range(10)
        for client in range(20)
        for epoch in range(5)
    }
    assert len(seeds) == 5 * 10 * 20 * 5
    for seed in list(seeds)[:100]:
        np.random.default_rng(seed)
        torch.Generator().manual_seed(seed)


def test_parts_are_told_apart() -> None:
    assert derive_seed(1, 2) != derive_seed(2, 1)
    assert derive_seed(12) != derive_seed(1, 2)
    assert derive_seed("ab", "c") != derive_seed("a", "bc")
    assert derive_seed(1) != derive_seed("1")
    assert derive_seed(-1) != derive_seed(1)


def test_a_seed_is_the_same_in_another_process() -> None:
    code = "from fedbnn_core.seeding import derive_seed; print(derive_seed(7, 'x', 3))"
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert int(printed) == derive_seed(7, "x", 3)

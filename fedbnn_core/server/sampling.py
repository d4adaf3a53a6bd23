"""Draw a round's clients: a function of seed, round and attempt, without state."""

from collections.abc import Collection

import numpy as np

from fedbnn_core.errors import RunError
from fedbnn_core.seeding import derive_seed

__all__ = ["sample_clients"]


def sample_clients(
    pool: Collection[int],
    count: int,
    *,
    seed: int,
    round_index: int,
    attempt: int = 0,
    tried: Collection[int] = (),
) -> list[int]:
    """Return up to ``count`` clients of the pool, sorted.

    Parameters
    ----------
    pool : the clients that may be drawn; their order does not matter.
    count : how many; all of a smaller pool.
    seed : the run's seed.
    round_index : the round, from 0.
    attempt : how often the round was tried before.
    tried : clients of those attempts, drawn only if there are too few others.
    """
    if not pool:
        raise RunError("no client is connected; start clients and run again")
    # Without an attempt in the seed of a first try, as few runs ever need a second.
    position = (round_index, attempt) if attempt else (round_index,)
    generator = np.random.default_rng(derive_seed(seed, "sampling", *position))
    count = min(count, len(pool))
    fresh = sorted(set(pool) - set(tried))
    rest = sorted(set(pool) - set(fresh))
    chosen = generator.choice(fresh, size=min(count, len(fresh)), replace=False)
    again = generator.choice(rest, size=count - len(chosen), replace=False)
    return sorted(int(client) for client in (*chosen, *again))

"""Derive independent random seeds from a run's seed and a position in the run."""

import hashlib

__all__ = ["derive_seed"]

_SEED_BITS = 63


def derive_seed(*parts: int | str) -> int:
    """Hash a position such as ``(run seed, "batches", round, client)`` to a seed.

    Seeds of different positions are unrelated, and a seed does not depend on the
    order in which clients happen to run, on the process or on the platform.

    Parameters
    ----------
    *parts : int or str
        The position, outermost first. ``1`` and ``"1"`` are different parts.

    Returns
    -------
    int
        A seed in [0, 2**63), accepted by numpy's and torch's generators.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        # repr tells int from str, and its length keeps ("ab", "c") from ("a", "bc").
        text = repr(int(part)) if isinstance(part, int) else repr(str(part))
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(4, "little") + encoded)
    return int.from_bytes(digest.digest(), "little") >> (64 - _SEED_BITS)

"""Judge a client's reply before it counts.

A reply is input from outside: whatever it holds, judging it ends in acceptance or in
a `ReplyError` with the reason and the figure, never in another exception.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedbnn_core.aggregation import Array, Arrays
from fedbnn_core.errors import ReplyError

__all__ = ["ReplyRules", "check_reply"]


@dataclass(frozen=True)
class ReplyRules:
    """What an acceptable reply looks like."""

    arrays: Arrays
    """Keys, shapes and dtypes of the trained state."""
    rotations: Arrays
    """Keys, shapes and dtypes of R1 and R2; empty if the method has none."""
    max_examples: int = 10**9
    """Upper bound for num-examples."""
    orthogonality_tolerance: float = 1e-3
    """Largest |R^T R - I| accepted."""


def check_reply(
    rules: ReplyRules,
    arrays: Mapping[str, Array],
    rotations: Mapping[str, Array],
    num_examples: object,
) -> None:
    """Raise `ReplyError` unless the reply obeys the rules."""
    if type(num_examples) is not int or not 0 < num_examples <= rules.max_examples:
        raise ReplyError(
            f"num-examples must be an integer in 1..{rules.max_examples}, "
            f"got {num_examples!r}"
        )
    _check_arrays("arrays", rules.arrays, arrays)
    _check_arrays("rotations", rules.rotations, rotations)
    for name, matrix in rotations.items():
        r = matrix.astype(np.float64)
        error = float(np.abs(r.T @ r - np.eye(len(r))).max())
        if not error <= rules.orthogonality_tolerance:
            raise ReplyError(
                f"rotation {name!r} is not orthogonal: |R^T R - I| = {error:.2g}, "
                f"allowed {rules.orthogonality_tolerance:g}"
            )


def _check_arrays(
    record: str, expected: Mapping[str, Array], got: Mapping[str, Array]
) -> None:
    if got.keys() != expected.keys():
        missing = sorted(expected.keys() - got.keys())
        surplus = sorted(map(str, got.keys() - expected.keys()))
        raise ReplyError(
            f"{record} has {len(missing)} missing keys {missing[:3]} "
            f"and {len(surplus)} unknown keys {surplus[:3]}"
        )
    for name, template in expected.items():
        array = got[name]
        if array.shape != template.shape or array.dtype != template.dtype:
            raise ReplyError(
                f"{record} {name!r} must be {template.dtype} {template.shape}, "
                f"got {array.dtype} {array.shape}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            count = int(np.count_nonzero(~np.isfinite(array)))
            raise ReplyError(
                f"{record} {name!r} has {count} values that are not finite"
            )

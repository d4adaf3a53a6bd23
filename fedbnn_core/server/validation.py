"""Validate a client's reply before it counts.

A reply is input from outside: whatever it holds, validating it ends in acceptance or in
a `ReplyError` with the reason and the figure, never in another exception.
"""

import io
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from fedbnn_core.aggregation.norms import update_norm
from fedbnn_core.arrays import Array, Arrays
from fedbnn_core.errors import ReplyError
from fedbnn_core.messages import LAYER_METRICS, ReplyMetrics
from fedbnn_core.server.reply import Reply

__all__ = [
    "ReplyRules",
    "decode_array",
    "validate",
    "validate_arrays",
]

_MAX_NPY_HEADER_BYTES = 1024
_MAX_LAYERS = 10_000
_SCALARS = {
    ReplyMetrics.NUM_EXAMPLES,
    ReplyMetrics.PARTITION_ID,
    ReplyMetrics.ROUND,
    ReplyMetrics.LOSS,
}
_MAX_EXACT_INTEGER = 2**53
_VARIANCE_SUFFIX = "running_var"


@dataclass(frozen=True)
class ReplyRules:
    """What an acceptable reply looks like."""

    arrays: Arrays
    """Keys, shapes and dtypes of the trained state."""
    rotations: Arrays
    """Keys, shapes and dtypes of R1 and R2; empty if none are sent."""
    sent: Arrays | None = None
    """The same of what travels in place of ``arrays``, if that is coded."""
    max_examples: int = 10**9
    """Upper bound for num-examples."""
    orthogonality_tolerance: float = 1e-3
    """Largest |R^T R - I| accepted."""
    max_update_norm: float = math.inf
    """Largest L2 norm of (reply - broadcast) over all float arrays."""
    measure_update: Callable[[Arrays, Arrays], float] | None = None
    """Norm of what a method's arrays stand for; None: `update_norm` of them."""

    @property
    def travelling(self) -> Arrays:
        """Return keys, shapes and dtypes of all arrays of a message."""
        return {**(self.sent or self.arrays), **self.rotations}


def validate(
    rules: ReplyRules,
    *,
    arrays: Mapping[str, bytes],
    rotations: Mapping[str, bytes],
    metrics: Mapping[str, object],
    broadcast: Mapping[str, Array],
    round_index: int,
    partition_id: int,
    read: Callable[[Arrays], Arrays] = lambda sent: sent,
) -> Reply:
    """Return the reply to ``broadcast`` if it obeys the rules.

    Parameters
    ----------
    rules : what is expected.
    arrays : the trained state as it came, each array an npy file.
    rotations : R1 and R2 likewise.
    metrics : num-examples, round, partition-id, loss and lists of per-layer metrics.
    broadcast : the arrays that the client was sent.
    round_index : the round it must answer, from 0.
    partition_id : the client that was asked.
    read : makes the trained state of what travelled; may raise `ReplyError`.

    Raises
    ------
    ReplyError
        With the reason; whatever the reply holds, no other exception leaves.
    """
    try:
        loss, layer_metrics = _check_metrics(metrics, round_index, partition_id)
        _check_size(rules, (*arrays.values(), *rotations.values()))
        sent = _decode("arrays", rules.sent or rules.arrays, arrays)
        turned = _decode("rotations", rules.rotations, rotations)
        trained = read(sent)
        num_examples = metrics.get(ReplyMetrics.NUM_EXAMPLES)
        norm = validate_arrays(rules, trained, turned, num_examples, broadcast)
    except ReplyError:
        raise
    except Exception as error:
        raise ReplyError(f"malformed reply: {error!r:.200}") from error
    assert isinstance(num_examples, int)  # noqa: S101  validate_arrays saw to it
    return Reply(
        partition_id,
        num_examples,
        trained | turned,
        update_norm=norm,
        loss=loss,
        layer_metrics=layer_metrics,
    )


def _check_metrics(
    metrics: Mapping[str, object], round_index: int, partition_id: int
) -> tuple[float | None, dict[str, list[float]]]:
    """Return the loss and the per-layer metrics."""
    unknown = metrics.keys() - _SCALARS - set(LAYER_METRICS)
    if unknown:
        raise ReplyError(
            f"it holds {len(unknown)} unknown metrics, such as {min(unknown)!r:.80}"
        )
    answered = metrics.get(ReplyMetrics.ROUND)
    if type(answered) is not int or answered != round_index:
        raise ReplyError(f"it answers round {answered!r}, expected {round_index}")
    sender = metrics.get(ReplyMetrics.PARTITION_ID)
    if type(sender) is not int or sender != partition_id:
        raise ReplyError(f"it comes from partition {sender!r}, expected {partition_id}")
    values_by_name: dict[str, list[float]] = {}
    for name in sorted(metrics.keys() & set(LAYER_METRICS)):
        values = metrics[name]
        if not isinstance(values, list) or len(values) > _MAX_LAYERS:
            raise ReplyError(
                f"metric {name!r} must be a list of at most {_MAX_LAYERS} numbers, "
                f"got {values!r:.80}"
            )
        values_by_name[name] = [_finite_number(name, value) for value in values]
    loss = metrics.get(ReplyMetrics.LOSS)
    return None if loss is None else _finite_number("loss", loss), values_by_name


def _finite_number(name: str, value: object) -> float:
    # type, not isinstance: True is an int.
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise ReplyError(f"metric {name!r} must be a finite number, got {value!r}")
    return float(value)  # type: ignore[arg-type]


def _check_size(rules: ReplyRules, received: Collection[bytes]) -> None:
    """Bound the bytes before anything is decoded."""
    expected = rules.travelling.values()
    allowed = sum(array.nbytes + _MAX_NPY_HEADER_BYTES for array in expected)
    size = sum(len(data) for data in received)
    if size > allowed:
        raise ReplyError(f"it has {size} bytes of arrays, allowed {allowed}")


def _decode(
    record: str, expected: Mapping[str, Array], got: Mapping[str, bytes]
) -> Arrays:
    _check_keys(record, expected, got)
    return {
        name: decode_array(got[name], template, name=f"{record} {name!r}")
        for name, template in expected.items()
    }


def decode_array(data: bytes, template: Array, *, name: str) -> Array:
    """Return an npy file's array without copying it.

    The header is compared with the template before the data is touched: a header that
    promises terabytes allocates nothing, and nothing is ever unpickled.
    """
    file = io.BytesIO(data[:_MAX_NPY_HEADER_BYTES])
    try:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"version {version}")
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    except Exception as error:
        raise ReplyError(f"{name} is no npy array: {error!r:.120}") from error
    if shape != template.shape or dtype != template.dtype:
        raise ReplyError(
            f"{name} must be {template.dtype} {template.shape}, got {dtype} {shape}"
        )
    offset = file.tell()
    if len(data) - offset != template.nbytes:
        raise ReplyError(
            f"{name} must have {template.nbytes} bytes of data, "
            f"got {len(data) - offset}"
        )
    flat = np.frombuffer(data, dtype, offset=offset)
    if fortran_order:
        return np.ascontiguousarray(flat.reshape(shape, order="F")).reshape(shape)
    return flat.reshape(shape)


def validate_arrays(
    rules: ReplyRules,
    arrays: Mapping[str, Array],
    rotations: Mapping[str, Array],
    num_examples: object,
    broadcast: Mapping[str, Array] | None = None,
) -> float:
    """Raise `ReplyError` unless the reply obeys the rules; return its update's norm.

    Without ``broadcast`` the norm is that of the arrays themselves.
    """
    if type(num_examples) is not int or not 0 < num_examples <= rules.max_examples:
        raise ReplyError(
            f"num-examples must be an integer in 1..{rules.max_examples}, "
            f"got {num_examples!r}"
        )
    _check_arrays("arrays", rules.arrays, arrays)
    _check_arrays("rotations", rules.rotations, rotations)
    for name, matrix in rotations.items():
        error = _orthogonality_error(matrix)
        if not error <= rules.orthogonality_tolerance:
            raise ReplyError(
                f"rotation {name!r} is not orthogonal: |R^T R - I| = {error:.2g}, "
                f"allowed {rules.orthogonality_tolerance:g}"
            )
    norm = (rules.measure_update or update_norm)(dict(arrays), dict(broadcast or {}))
    if not norm <= rules.max_update_norm:
        raise ReplyError(
            f"the norm of its update is {norm:.4g}, allowed {rules.max_update_norm:g}"
        )
    return norm


def _orthogonality_error(matrix: Array) -> float:
    r = matrix.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.abs(r.T @ r - np.eye(len(r))).max())


def _check_keys(
    record: str, expected: Mapping[str, object], got: Mapping[str, object]
) -> None:
    if got.keys() != expected.keys():
        missing = sorted(expected.keys() - got.keys())
        surplus = sorted(map(str, got.keys() - expected.keys()))
        raise ReplyError(
            f"{record} has {len(missing)} missing keys {missing[:3]} "
            f"and {len(surplus)} unknown keys {str(surplus[:3])[:200]}"
        )


def _check_arrays(
    record: str, expected: Mapping[str, Array], got: Mapping[str, Array]
) -> None:
    _check_keys(record, expected, got)
    for name, template in expected.items():
        array = got[name]
        if array.shape != template.shape or array.dtype != template.dtype:
            raise ReplyError(
                f"{record} {name!r} must be {template.dtype} {template.shape}, "
                f"got {array.dtype} {array.shape}"
            )
        if array.dtype.kind == "f":
            _check_floats(f"{record} {name!r}", array)
        elif array.dtype.kind in "iu" and array.size:
            # They count batches, or are packed bits.
            smallest, largest = int(array.min()), int(array.max())
            if smallest < 0 or largest > _MAX_EXACT_INTEGER:
                raise ReplyError(
                    f"{record} {name!r} holds values from {smallest} to {largest}, "
                    f"allowed 0 to {_MAX_EXACT_INTEGER}"
                )


def _check_floats(name: str, array: Array) -> None:
    # The sum of finite floats is finite or overflows; of others it is never finite.
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(array.sum()) and not np.isfinite(array).all():
            count = int(np.count_nonzero(~np.isfinite(array)))
            raise ReplyError(f"{name} has {count} values that are not finite")
    # A negative variance makes every later output of the network NaN.
    if name.rstrip("'").endswith(_VARIANCE_SUFFIX) and array.size and array.min() < 0:
        raise ReplyError(f"{name} holds a negative variance, {array.min():.4g}")

"""Decode a message from the objects that a device sent, whatever they hold.

Flower cuts a message into objects: the message, its records, their arrays and the
arrays' chunks. An object names its children by their SHA-256, so a tree has no cycles,
but an object may be named many times, and then a few bytes become many.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflatable_class_registry,
    inflate_object_from_contents,
)

from fedbnn_core.arrays import Arrays
from fedbnn_core.errors import ReplyError

__all__ = ["DEPTH", "Limits", "decode_message"]

_LEVELS = (
    ("Message",),
    ("RecordDict",),
    ("ArrayRecord", "ConfigRecord", "MetricRecord"),
    ("Array",),
    ("ArrayChunk",),
)
DEPTH = len(_LEVELS)
"""Levels of a message's tree."""
_CHUNK_BYTES = 5 * 2**20
"""Flower's own size of a chunk; a device may have set a smaller one."""
_HEADROOM = 4
_RECORDS_BYTES = 2**21
"""For all that is no array: 40 times as much when it is decoded."""
_PER_ARRAY_BYTES = 4096


@dataclass(frozen=True)
class Limits:
    """How much one device may send as an answer."""

    objects: int = 16
    """Nodes of its tree."""
    array_bytes: int = 0
    """Bytes of all arrays together."""
    record_bytes: int = 2**16
    """Bytes of everything else together."""

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> "Limits":
        """Return the limits for a reply that holds arrays like these."""
        chunks = sum(1 + array.nbytes // _CHUNK_BYTES for array in arrays.values())
        size = sum(array.nbytes for array in arrays.values())
        return cls(
            objects=16 + _HEADROOM * (len(arrays) + chunks),
            # Twice: a reply that is a little too large is refused with its figure.
            array_bytes=2 * (size + _PER_ARRAY_BYTES * len(arrays)),
            record_bytes=_RECORDS_BYTES + _PER_ARRAY_BYTES * len(arrays),
        )

    @property
    def tree_bytes(self) -> int:
        """Bytes that describe a tree of this many objects."""
        return 2**14 + 128 * self.objects

    @property
    def total_bytes(self) -> int:
        """Bytes of all objects."""
        return self.array_bytes + self.record_bytes


def decode_message(root: str, contents: dict[str, bytes], limits: Limits) -> Message:
    """Return the message whose object is ``root``.

    Parameters
    ----------
    root : the message's object id.
    contents : every object that was fetched, by id; it is emptied.
    limits : what it may hold; they are checked before anything is decoded.

    Raises
    ------
    ReplyError
        With the reason; whatever the objects hold, no other exception leaves.
    """
    try:
        _check(root, contents, limits)
        message = inflate_object_from_contents(root, contents)
    except ReplyError:
        raise
    except Exception as error:
        raise ReplyError(f"malformed message: {error!r:.200}") from error
    if not isinstance(message, Message):
        raise ReplyError(f"a {type(message).__name__} where a Message belongs")
    return message


def _check(root: str, contents: Mapping[str, bytes], limits: Limits) -> None:
    """Walk the objects as they name each other; raise `ReplyError` if they may not."""
    records = arrays = expanded = 0
    pending, seen = [(root, 0)], {root}
    while pending:
        name, level = pending.pop()
        content = contents.get(name)
        if content is None:
            raise ReplyError(f"it names an object that was not announced, {name:.12}")
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind not in _LEVELS[level]:
            raise ReplyError(f"{kind!r:.40} where {_LEVELS[level][0]} belongs")
        if kind == "Array":
            expanded += _array_bytes(content, children, contents)
        if kind == "ArrayChunk":
            arrays += len(content)
        else:
            records += len(content)
        if max(arrays, expanded) > limits.array_bytes:
            raise ReplyError(f"its arrays have more than {limits.array_bytes} bytes")
        if records > limits.record_bytes:
            raise ReplyError(f"its records have more than {limits.record_bytes} bytes")
        if children and level + 1 == DEPTH:
            raise ReplyError("its tree is too deep")
        for child in children:
            if child not in seen:
                seen.add(child)
                pending.append((child, level + 1))


def _array_bytes(
    content: bytes, children: list[str], contents: Mapping[str, bytes]
) -> int:
    """Return an array's size: it may name one chunk any number of times."""
    body = json.loads(get_object_body(content, inflatable_class_registry["Array"]))
    return sum(len(contents.get(children[i], b"")) for i in body["arraychunk_ids"])

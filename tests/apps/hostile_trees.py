"""What a device could push that is not Flower's client: object trees, byte by byte.

Every case takes an honest reply and returns what is sent in its place. An object is
``TYPE CHILD,CHILD LENGTH\\0BODY``, its id the SHA-256 of that.
"""

import hashlib
import json
from dataclasses import dataclass, field

from flwr.app import Error, Message
from flwr.app.message import make_message
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

NOBODY = "0" * 64


def made(kind, children=(), body=b""):
    """Return an object's bytes."""
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body


def name_of(content):
    return hashlib.sha256(content).hexdigest()


def split(content):
    head, _, body = content.partition(b"\0")
    kind, children, _ = head.decode().split(" ")
    return kind, [c for c in children.split(",") if c], body


@dataclass
class Sent:
    """A message as it is pushed."""

    root: bytes
    others: list = field(default_factory=list)
    withheld: set = field(default_factory=set)
    """Ids of objects that are announced but never sent."""
    extra: list = field(default_factory=list)
    """Ids that are announced although no object names them."""
    hidden: set = field(default_factory=set)
    """Ids that objects name, but that are not announced."""
    nested: int = 0
    """Levels that are announced below the message, whatever its objects say."""

    @property
    def objects(self):
        """Every object by id."""
        return {name_of(content): content for content in (*self.others, self.root)}

    def pushed(self):
        """Return what is really sent."""
        found = self.objects
        return {k: v for k, v in found.items() if k not in self.withheld}

    def tree(self):
        """Return the tree that is announced."""
        objects = self.objects

        def node(name, level=0):
            kids = split(objects[name])[1] if name in objects else []
            children = [node(k, level + 1) for k in kids if k not in self.hidden]
            return ObjectTree(object_id=name, children=children)

        tree = node(name_of(self.root))
        tree.children.extend(ObjectTree(object_id=name) for name in self.extra)
        inner = tree
        for level in range(self.nested):
            inner = inner.children.add(object_id=f"{level:064x}")
        return tree


class Honest:
    """An honest reply's objects, to be changed."""

    def __init__(self, message):
        self.message = message
        self.contents = [o.deflate() for o in get_all_nested_objects(message).values()]
        self.root = self.contents[-1]
        self.body = split(self.root)[2]
        (records,) = (c for c in self.contents if split(c)[0] == "RecordDict")
        self.records = records
        self.parts = {
            key: self.by_name(child)
            for key, child in json.loads(split(records)[2]).items()
        }
        self.leaves = [
            c for c in self.contents if split(c)[0] not in ("RecordDict", "Message")
        ]

    def by_name(self, name):
        return next(c for c in self.contents if name_of(c) == name)

    def first(self, kind):
        return next(c for c in self.contents if split(c)[0] == kind)

    def with_records(self, records, others=(), **options):
        """Return the message with another object in the place of its records."""
        root = made("Message", [name_of(records)], self.body)
        return Sent(root, [*self.leaves, *others, records], **options)

    def with_parts(self, parts, others=(), **options):
        """Return the message with other records; parts: bytes by name."""
        children = list(dict.fromkeys(name_of(c) for c in parts.values()))
        body = json.dumps({key: name_of(c) for key, c in parts.items()}).encode()
        records = made("RecordDict", children, body)
        return self.with_records(records, [*others, *parts.values()], **options)

    def with_array(self, array, others=(), **options):
        """Return the message whose arrays are all replaced by one array object."""
        names = json.loads(split(self.parts["arrays"])[2])
        body = json.dumps(dict.fromkeys(names, name_of(array))).encode()
        record = made("ArrayRecord", [name_of(array)], body)
        parts = self.parts | {"arrays": record}
        return self.with_parts(parts, [array, *others], **options)

    def with_metadata(self, **changes):
        """Return the message that says other things of itself."""
        metadata = self.message.metadata
        before = {f"_{key}": metadata.__dict__[f"_{key}"] for key in changes}
        metadata.__dict__.update({f"_{key}": value for key, value in changes.items()})
        root = make_message(metadata=metadata, content=self.message.content).deflate()
        metadata.__dict__.update(before)
        return Sent(root, self.contents[:-1])


def array_object(chunks, indices, **meta):
    body = {"dtype": "float32", "shape": [1], "stype": "numpy.ndarray"} | meta
    body["arraychunk_ids"] = indices
    return made("Array", [name_of(c) for c in chunks], json.dumps(body).encode())


def _chunk_bomb(honest):
    chunk = made("ArrayChunk", body=bytes(4 * 2**20))
    return honest.with_array(array_object([chunk], [0] * 100_000), [chunk])


def _error_and_content(honest):
    metadata = honest.message.metadata
    error = make_message(metadata=metadata, error=Error(2, "both")).deflate()
    root = made("Message", [name_of(honest.records)], split(error)[2])
    return Sent(root, honest.contents[:-1])


def _npy(header):
    text = header.encode() + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    chunk = made("ArrayChunk", body=data)
    return lambda honest: honest.with_array(array_object([chunk], [0]), [chunk])


def _deep_arrays(honest):
    levels = [honest.first("Array")]
    for _ in range(20):
        levels.append(array_object([levels[-1]], [0]))
    return honest.with_array(levels[-1], levels[:-1])


def _many_objects(honest):
    return Sent(
        honest.root, honest.contents[:-1], extra=[f"{n:064x}" for n in range(600)]
    )


def _huge_chunk(honest):
    chunk = made("ArrayChunk", body=bytes(16 * 2**20))
    return honest.with_array(array_object([chunk], [0]), [chunk])


def _huge_record(honest):
    body = json.dumps({f"key {n}": NOBODY for n in range(200_000)}).encode()
    return honest.with_parts(honest.parts | {"arrays": made("ArrayRecord", (), body)})


def _record(kind, body, key="arrays"):
    return lambda h: h.with_parts(h.parts | {key: made(kind, (), body)})


CASES = {
    "garbage-body": lambda h: Sent(made("Message", (), b"\xff\xfe garbage \x00\x01")),
    "garbage-body-with-records": lambda h: Sent(
        made("Message", split(h.root)[1], b"\x0a\xff\xff\xff"), h.contents[:-1]
    ),
    "empty-body": lambda h: Sent(made("Message")),
    "empty-body-with-records": lambda h: Sent(
        made("Message", split(h.root)[1]), h.contents[:-1]
    ),
    "no-records": lambda h: Sent(made("Message", (), h.body)),
    "chunk-as-root": lambda h: Sent(h.first("ArrayChunk")),
    "array-as-root": lambda h: Sent(h.first("Array"), h.leaves),
    "records-as-root": lambda h: Sent(h.records, h.leaves),
    "metrics-as-root": lambda h: Sent(h.first("MetricRecord")),
    "child-never-announced": lambda h: Sent(
        h.root, h.contents[:-1], hidden={name_of(h.records)}
    ),
    "array-never-announced": lambda h: Sent(
        h.root, h.contents[:-1], hidden={name_of(h.first("Array"))}
    ),
    "child-of-nobody": lambda h: Sent(made("Message", [NOBODY], h.body)),
    "metrics-where-arrays-belong": lambda h: h.with_parts(
        h.parts | {"arrays": h.parts["metrics"]}
    ),
    "arrays-where-metrics-belong": lambda h: h.with_parts(
        h.parts | {"metrics": h.parts["arrays"]}
    ),
    "chunk-where-a-record-belongs": lambda h: h.with_parts(
        h.parts | {"arrays": h.first("ArrayChunk")}
    ),
    "records-json-is-a-list": lambda h: h.with_records(
        made("RecordDict", split(h.records)[1], b'["arrays", "metrics"]')
    ),
    "records-json-is-a-number": lambda h: h.with_records(made("RecordDict", (), b"17")),
    "records-json-is-broken": lambda h: h.with_records(
        made("RecordDict", (), b'{"arrays": ')
    ),
    "records-json-is-no-text": lambda h: h.with_records(
        made("RecordDict", (), b"\xff\xfe\xfd")
    ),
    "records-json-is-nested": lambda h: h.with_records(
        made("RecordDict", (), b"[" * 20_000)
    ),
    "array-record-json-is-a-list": _record("ArrayRecord", b"[]"),
    "array-record-is-huge": _huge_record,
    "metric-record-is-garbage": _record("MetricRecord", b"\x0a\x05abc", "metrics"),
    "config-where-metrics-belong": _record("ConfigRecord", b"", "metrics"),
    "message-in-a-message": lambda h: Sent(
        made("Message", [name_of(h.root)], h.body), h.contents
    ),
    "two-children": lambda h: Sent(
        made("Message", [name_of(h.records), name_of(h.first("Array"))], h.body),
        h.contents[:-1],
    ),
    "records-in-records": lambda h: h.with_parts({"arrays": h.records}, [h.records]),
    "announced-too-deep": lambda h: Sent(h.root, h.contents[:-1], nested=40),
    "arrays-in-arrays": _deep_arrays,
    "too-many-objects": _many_objects,
    "chunk-bomb": _chunk_bomb,
    "huge-chunk": _huge_chunk,
    "chunk-index-out-of-range": lambda h: h.with_array(
        array_object([h.first("ArrayChunk")], [0, 7])
    ),
    "chunk-index-is-text": lambda h: h.with_array(
        array_object([h.first("ArrayChunk")], ["0"])
    ),
    "array-json-is-a-list": lambda h: h.with_array(made("Array", (), b"[1, 2]")),
    "array-shape-is-text": lambda h: h.with_array(
        array_object([h.first("ArrayChunk")], [0], shape="ab")
    ),
    "inner-type-is-a-path": lambda h: h.with_metadata(message_type="../../x"),
    "inner-type-of-another-kind": lambda h: h.with_metadata(message_type="evaluate"),
    "answers-what-nobody-sent": lambda h: h.with_metadata(reply_to_message_id=NOBODY),
    "another-sender": lambda h: h.with_metadata(src_node_id=12345),
    "another-run": lambda h: h.with_metadata(run_id=99),
    "error-and-content": _error_and_content,
    "array-of-terabytes": _npy(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}"
    ),
    "pickled-array": _npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"),
    "array-that-is-withheld": lambda h: Sent(
        h.root, h.contents[:-1], withheld={name_of(h.first("Array"))}
    ),
    "all-is-withheld": lambda h: Sent(
        h.root, h.contents[:-1], withheld={name_of(c) for c in h.contents}
    ),
}
"""What is sent in the place of an honest reply, by name."""

SILENT = {"array-that-is-withheld", "all-is-withheld"}
"""Cases that look like a device whose upload has not ended."""


def hostile(case, message: Message) -> Sent:
    """Return what a case sends instead of an honest reply."""
    return CASES[case](Honest(message))

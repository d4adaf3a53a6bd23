"""What a device pushes past Flower's client never ends a run, and is never taken."""

import json
import random
import tracemalloc
from functools import cache

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server_app import download
from server_app.download import Downloads
from server_app.inbox import answer_of
from server_app.objects import Limits
from tests.apps.hostile_trees import CASES, SILENT, hostile, made, name_of, split

WEIGHTS = {"w": np.arange(6, dtype=np.float32), "b": np.ones((2, 3), np.float32)}
LIMITS = Limits.of_arrays(WEIGHTS)
QUESTION = "q" * 64


class SuperLink:
    """Answers Flower's client from a dictionary, as the SuperLink does."""

    def __init__(self, envelope, tree, objects, root):
        self.envelope, self.tree, self.objects, self.root = (
            envelope,
            tree,
            objects,
            root,
        )
        self.announced = False
        self.confirmed = []
        self.asked = 0
        self.handed_bytes = 0

    def PullMessages(self, request):  # noqa: N802
        if self.announced or list(request.message_ids) != [QUESTION]:
            return PullAppMessagesResponse()
        self.announced = True
        proto = message_to_proto(self.envelope)
        proto.metadata.message_id = self.root
        return PullAppMessagesResponse(
            messages_list=[proto], message_object_trees=[self.tree]
        )

    def PullObject(self, request):  # noqa: N802
        self.asked += 1
        content = self.objects.get(request.object_id)
        self.handed_bytes += len(content or b"")
        return PullObjectResponse(
            object_found=True,
            object_available=content is not None,
            object_content=content or b"",
        )

    def ConfirmMessageReceived(self, request):  # noqa: N802
        self.confirmed.append(request.message_object_id)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(download, "_FIRST_PAUSE_SECONDS", 0.0)


def honest_reply():
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    question = Message(RecordDict(), dst_node_id=7, message_type="train")
    question.metadata.__dict__["_message_id"] = QUESTION
    arrays = ArrayRecord({key: Array(value) for key, value in WEIGHTS.items()})
    metrics = MetricRecord({"num-examples": 3, "loss": 0.5, "alpha": [1.0, 2.0]})
    return Message(
        RecordDict({"arrays": arrays, "rotations": ArrayRecord(), "metrics": metrics}),
        reply_to=question,
    )


@cache
def honest_objects():
    """Return an honest reply's envelope and objects, the message last."""
    reply = honest_reply()
    sent = hostile("another-run", reply)
    return remove_content_from_message(reply), [*sent.others, reply.deflate()]


def fetch(tree, objects, root, limits=LIMITS):
    """Fetch until the message is there or refused; return it and the SuperLink."""
    link = SuperLink(honest_objects()[0], tree, objects, root)
    downloads = Downloads(link, 1, "train", limits)
    for _ in range(100):
        if (fetched := downloads.fetch(QUESTION)) is not None:
            return fetched, link
    raise AssertionError("neither taken nor refused")


def test_an_honest_reply_arrives_whole():
    reply = honest_reply()
    sent = hostile("another-run", reply)
    sent.root = reply.deflate()
    fetched, link = fetch(sent.tree(), sent.pushed(), name_of(sent.root))
    assert fetched.problem == ""
    assert fetched.question == QUESTION
    assert fetched.message.content == reply.content
    assert fetched.size_bytes == sum(map(len, sent.pushed().values()))
    assert link.confirmed == [name_of(sent.root)]


# These are well-formed messages; validation refuses what they hold.
WELL_FORMED = {
    "array-of-terabytes",
    "pickled-array",
    "metrics-where-arrays-belong",
    "arrays-where-metrics-belong",
    "config-where-metrics-belong",
    "array-record-json-is-a-list",
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_hostile_trees_are_refused_within_the_limits(case):
    sent = hostile(case, honest_reply())
    tree, pushed, root = sent.tree(), sent.pushed(), name_of(sent.root)
    tracemalloc.start()
    fetched, link = fetch(tree, pushed, root)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    if fetched.message is not None and fetched.message.has_content():
        assert case in WELL_FORMED
        kinds = {k: type(v) for k, v in fetched.message.content.items()}
        usual = {
            "arrays": ArrayRecord,
            "rotations": ArrayRecord,
            "metrics": MetricRecord,
        }
        if kinds == usual:
            got = {k: a.data for k, a in fetched.message.content["arrays"].items()}
            assert got.keys() != WEIGHTS.keys() or len(set(got.values())) == 1
    elif fetched.message is None:
        assert fetched.problem
        assert fetched.problem.isprintable()
    # The SuperLink forgets it, and nothing is fetched for ever.
    assert link.confirmed == [root]
    assert link.asked <= LIMITS.objects + 25
    assert fetched.size_bytes <= LIMITS.total_bytes
    # Records grow when they are decoded; a bomb would have 400 GB.
    assert peak < 60 * LIMITS.total_bytes
    if case in SILENT:
        assert "have not arrived" in fetched.problem


NAMES = (
    *("Message", "RecordDict", "ArrayRecord", "ConfigRecord", "MetricRecord", "Array"),
    *("ArrayChunk", "", "os.system", "../../x"),
)
scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.floats()
jsons = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def trees(draw):
    """Return root, objects and an announced tree, all as a device might make them."""
    # Few draws: hypothesis takes its time for each.
    chance = random.Random(draw(st.integers(0, 2**64)))  # noqa: S311
    noise, value = draw(st.binary(max_size=60)), draw(jsons)
    objects = list(honest_objects()[1])
    for _ in range(chance.randint(0, 4)):
        old = chance.choice(objects)
        try:
            kind, children, body = split(old)
        except ValueError:
            kind, children, body = "Array", [], old
        known = [*map(name_of, objects), "0" * 64]
        at = chance.randrange(len(old) + 1)
        new = chance.choice(
            (
                noise,
                made(chance.choice(NAMES), children, body),
                made(kind, chance.choices(known, k=chance.randint(0, 4)), body),
                made(kind, children, noise),
                made(kind, children, json.dumps(value).encode()),
                old[:at] + noise[:3] + old[at + 1 :],
            )
        )
        if chance.random() < 0.6:
            # Every parent follows, so that the change is reached.
            objects = _replaced(objects, old, new)
        else:
            objects.append(new)
    root = objects[-1] if chance.random() < 0.7 else chance.choice(objects)
    contents = {name_of(content): content for content in objects}
    announced = [*contents, *["f" * 64] * chance.randint(0, 1)]
    chance.shuffle(announced)
    if chance.random() < 0.3:
        del announced[chance.randrange(len(announced)) :]
    tree = ObjectTree(object_id=name_of(root))
    for name in announced:
        tree.children.add(object_id=name)
    inner = tree
    for _ in range(chance.choice((0, 0, 0, 1, 3, 90))):
        inner = inner.children.add(object_id=name_of(root))
    return name_of(root), contents, tree


def _replaced(objects, old, new):
    renamed, result = {name_of(old).encode(): name_of(new).encode()}, []
    for content in objects:
        changed = new if content == old else content
        for before, after in list(renamed.items()):
            changed = changed.replace(before, after)
        if changed != content:
            renamed[name_of(content).encode()] = name_of(changed).encode()
        result.append(changed)
    return result


def test_no_tree_of_objects_raises(request):
    """It ends as a message or as a reason, after a bounded number of requests."""
    limited = settings(
        max_examples=request.config.getoption("object_trees"),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    limited(given(trees())(check_tree))()


def check_tree(tree):
    root, contents, announced = tree
    fetched, link = fetch(announced, contents, root)
    assert (fetched.message is None) == bool(fetched.problem)
    assert fetched.problem.isprintable()
    assert link.confirmed == [root]
    assert link.asked <= LIMITS.objects + 25
    if fetched.message is not None:
        # Whoever reads it next meets no surprise either.

        answer = answer_of(QUESTION, fetched.message)
        assert (answer.content is None) == bool(answer.problem)


@pytest.mark.parametrize("missing", range(7))
def test_a_reply_that_is_still_being_sent_is_read_when_it_is_whole(missing):
    reply = honest_reply()
    sent = hostile("another-run", reply)
    sent.root = reply.deflate()
    whole = sent.pushed()
    late = sorted(whole)[missing % len(whole)]
    envelope = remove_content_from_message(reply)
    objects = {name: content for name, content in whole.items() if name != late}
    link = SuperLink(envelope, sent.tree(), objects, name_of(sent.root))
    downloads = Downloads(link, 1, "train", LIMITS)
    for _ in range(3):
        assert downloads.fetch(QUESTION) is None
    objects[late] = whole[late]
    fetched = downloads.fetch(QUESTION)
    assert fetched.message.content == reply.content


def test_limits_leave_room_for_every_chunk_size():
    """A device may cut its arrays smaller than Flower does by default."""
    arrays = {f"a{n}": np.zeros(300, np.float32) for n in range(50)}
    limits = Limits.of_arrays(arrays)
    assert limits.objects >= 2 + 3 + 2 * 50
    assert limits.array_bytes > 50 * (1200 + 128)

"""What devices announce, in the object store that Flower's SuperLink has."""

import pytest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.object_store.sql_object_store import SqlObjectStore

from fedbnn_core.flower.announced_trees import AnnouncedTrees
from fedbnn_core.flower.fleet_limits import FleetLimits, Refused

LIMITS = FleetLimits(objects=10, depth=4, remembered_objects=100)


def name(letter):
    return letter * 64


def tree(root, *children):
    return ObjectTree(object_id=name(root), children=children)


def structure(node):
    return node.object_id[0], [structure(child) for child in node.children]


@pytest.fixture
def store():
    made = SqlObjectStore(":memory:")
    made.initialize()
    return made


QUESTION = tree("a", tree("b", tree("c"), tree("d")))


def test_a_reply_is_announced_flat():
    trees = AnnouncedTrees(LIMITS)
    reply = tree("1", tree("2", tree("3"), tree("4", tree("3"))), tree("1"))
    assert structure(trees.flat(reply)) == ("1", [("2", []), ("4", []), ("3", [])])


def test_what_the_server_sent_keeps_its_children():
    trees = AnnouncedTrees(LIMITS)
    assert trees.learn(QUESTION) == 4
    # Whatever the device says of them.
    reply = tree("1", tree("b", tree("2")), tree("c", tree("3")))
    found = dict(structure(trees.flat(reply))[1])
    assert found == {"b": [("c", []), ("d", [])], "c": [], "2": [], "3": []}


def test_no_lie_blocks_what_others_send(store):
    """A device says that objects which it foresees have other children."""
    lie = tree("1", tree("8", tree("9")), tree("b", tree("9")), tree("7"))
    honest = tree("2", tree("8"), tree("6", tree("7", tree("5"))))
    plain = SqlObjectStore(":memory:")
    plain.initialize()
    plain.preregister(1, lie)
    for blocked in (honest, QUESTION):
        with pytest.raises(ValueError, match="different children"):
            plain.preregister(1, blocked)
    trees = AnnouncedTrees(LIMITS)
    # The server has sent it before, and everything was forgotten since.
    trees.learn(QUESTION)
    store.preregister(1, trees.flat(lie))
    missing = store.preregister(1, trees.flat(honest))
    assert set(missing) == {name(letter) for letter in "25678"}
    store.preregister(1, QUESTION)
    # What is no longer needed goes, as without this.
    for root in "12a":
        store.delete(name(root))
    assert len(store) == 0


def test_limits():
    trees = AnnouncedTrees(LIMITS)
    assert trees.check(QUESTION, 4) == 4
    with pytest.raises(Refused, match="more than 3 objects"):
        trees.check(QUESTION, 3)
    with pytest.raises(Refused, match="more than 4 levels"):
        trees.check(tree("1", tree("2", tree("3", tree("4", tree("5"))))), 10)


def test_a_few_names_cannot_become_many_objects():
    trees = AnnouncedTrees(LIMITS)
    leaves = [ObjectTree(object_id=f"{n:064x}") for n in range(20)]
    for root in "abc":
        trees.learn(tree(root, *leaves))
    trees.flat(tree("1", tree("a")))
    with pytest.raises(Refused, match="repeats too much"):
        trees.flat(tree("1", tree("a"), tree("b"), tree("c")))


def test_the_oldest_structures_are_forgotten():
    trees = AnnouncedTrees(FleetLimits(remembered_objects=4))
    trees.learn(QUESTION)
    trees.learn(tree("e", tree("f")))
    trees.learn(QUESTION)
    assert structure(trees.flat(tree("1", tree("e")))) == ("1", [("e", [])])
    assert structure(trees.flat(tree("1", tree("a"))))[1] == [structure(QUESTION)]

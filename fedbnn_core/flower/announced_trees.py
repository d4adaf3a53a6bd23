"""The trees of objects that devices announce before they send a reply.

Flower stores equal objects once and refuses one that was announced with other children
before. So that no device can block an object that another one or the server is about to
send, objects of replies are announced without children, whatever the device says; only
those that the server has sent keep the children that they have. The server app finds
the structure in the objects themselves.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from fedbnn_core.flower.fleet_limits import FleetLimits, exhausted

__all__ = ["AnnouncedTrees"]


class AnnouncedTrees:
    """Check trees of replies, and remember those of the server's messages."""

    def __init__(self, limits: FleetLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._children: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def learn(self, tree: Any) -> int:
        """Remember the structure of what the server sends; return its objects."""
        nodes = [node for node, _ in _walk(tree)]
        with self._lock:
            for node in nodes:
                children = tuple(child.object_id for child in node.children)
                self._children[node.object_id] = children
                self._children.move_to_end(node.object_id)
            while len(self._children) > self._limits.remembered_objects:
                self._children.popitem(last=False)
        return len(nodes)

    def check(self, tree: Any, most: int) -> int:
        """Return a tree's nodes; raise `Refused` as soon as they are more than this."""
        count = 0
        for count, (_, level) in enumerate(_walk(tree), 1):
            if count > most:
                raise exhausted(f"its reply has more than {most} objects")
            if level > self._limits.depth:
                raise exhausted(
                    f"the tree of its reply has more than {self._limits.depth} levels"
                )
        return count

    def flat(self, tree: Any) -> Any:
        """Return a tree of the same objects whose root has them all as children.

        It is of the same type. Objects that the server has sent have their children
        below them once more.
        """
        kind, left = type(tree), 4 * self._limits.objects

        def known(name: str) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise exhausted("its reply repeats too much of what it received")
            children = [known(child) for child in self._children.get(name, ())]
            return kind(object_id=name, children=children)

        names = dict.fromkeys(node.object_id for node, _ in _walk(tree))
        names.pop(tree.object_id)
        with self._lock:
            children = [known(name) for name in names]
        return kind(object_id=tree.object_id, children=children)


def _walk(tree: Any) -> Iterator[tuple[Any, int]]:
    """Yield the nodes of a tree, each with its level from 1 on."""
    pending = [(tree, 1)]
    while pending:
        node, level = pending.pop()
        yield node, level
        pending += [(child, level + 1) for child in node.children]

"""Objects of earlier calls: what one was told of them is kept, and an object that holds the same again is recognised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aspen_jax.api import arguments
from aspen_jax.api.skeletons import (
    ARRAY,
    Node,
    Rest,
    make_dict,
    make_list,
    make_number,
    make_object,
    make_static,
    make_tuple,
    read,
)


class _Kept:
    """What is kept of a skeleton: the numbers that objects had, in words, and what is compared, once for each choice of those."""

    __slots__ = ("numbers", "rests")

    def __init__(self, count: int):
        self.numbers: tuple[set[str], ...] = tuple(set() for _ in range(count))
        self.rests: dict[tuple[str | None, ...], Rest] = {}


class KnownObjects:
    """Objects that one method was called with. Numbers that change often are traced, as numbers that are arguments are."""

    _PATIENCE = 4  # values of a number, each with a trace of its own

    def __init__(self) -> None:
        self._kept: dict[Node, _Kept] = {}
        self._last: tuple[Node, _Kept] | None = None

    def rest(self, skeleton: Node, numbers: Sequence[Any]) -> Rest:
        """What is compared of an object, from its skeleton and its numbers."""
        kept = self._kept.get(skeleton)
        if kept is None:
            kept = self._kept[skeleton] = _Kept(len(numbers))
        self._last = (skeleton, kept)
        return self._of_kept(skeleton, kept, numbers)

    def recognised(self, instance: Any) -> tuple[Rest, list[Any]] | None:
        """What is compared of an object and its children, if its skeleton is the last one; None if it has to be read anew.

        Reading an object anew makes a skeleton, which takes longer than looking whether it has this one.
        """
        last = self._last
        if last is None:
            return None
        skeleton, kept = last
        comparison = _Comparison()
        if not (comparison.matches(skeleton, instance) and comparison.holds_nothing_twice()):
            return None
        rest = self._of_kept(skeleton, kept, comparison.numbers)
        return rest, comparison.children + rest.moving(comparison.numbers)

    def _of_kept(self, skeleton: Node, kept: _Kept, numbers: Sequence[Any]) -> Rest:
        fixed: tuple[str | None, ...] = ()
        if numbers:
            texts = tuple(map(repr, numbers))
            for known, text in zip(kept.numbers, texts, strict=True):
                if len(known) <= self._PATIENCE:
                    known.add(text)
            fixed = tuple(None if len(known) > self._PATIENCE else text for known, text in zip(kept.numbers, texts, strict=True))
        rest = kept.rests.get(fixed)
        if rest is None:
            rest = kept.rests[fixed] = Rest(skeleton, fixed)
        return rest


class _Comparison:
    """Compares values with a skeleton and collects the arrays and numbers in them.

    What is rare does not match, also where it could: it is read anew.
    """

    __slots__ = ("_seen", "children", "numbers")

    def __init__(self) -> None:
        self.children: list[Any] = []
        self.numbers: list[Any] = []
        self._seen: list[int] = []

    def matches(self, node: Node, value: Any) -> bool:
        """Whether a value that holds others has this skeleton."""
        make = node[0]
        self._seen.append(id(value))
        if make is make_object:
            _, layout, names, nodes = node
            if layout.slots or type(value) is not layout.kind():
                return False
            fields = read(value, "__dict__")
            return tuple(fields) == names and self._all_match(nodes, fields.values())
        if make is make_list:
            return type(value) is list and len(value) == len(node[1]) and self._all_match(node[1], value)
        if make is make_dict:
            return type(value) is dict and tuple(value) == node[1] and self._all_match(node[2], value.values())
        return False

    def holds_nothing_twice(self) -> bool:
        """Whether all objects that matched are different ones; what is held twice has a skeleton of its own."""
        return len(set(self._seen)) == len(self._seen)

    def _all_match(self, nodes: Sequence[Node], values: Iterable[Any]) -> bool:
        for node, value in zip(nodes, values, strict=True):
            make = node[0]
            if node is ARRAY:
                if type(value) not in arguments.traced_types:
                    return False
                self.children.append(value)
            elif make is make_static:
                if type(value) is not node[1] or not _is_same(node, value):
                    return False
            elif make is make_number:
                if type(value) is not node[1]:
                    return False
                self.numbers.append(value)
            elif make is make_tuple:
                if type(value) is not tuple or len(value) != len(node[1]) or not self._all_match(node[1], value):
                    return False
            elif not self.matches(node, value):
                return False
        return True


def _is_same(node: Node, value: Any) -> bool:
    if len(node) == 3:  # a string, a bool or None
        return value == node[2]
    return value is node[2] and hash(value) == node[3]  # if the value changes it is still equal to itself, its hash is not

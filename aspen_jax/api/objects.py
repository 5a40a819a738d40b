"""Objects taken apart: their arrays are arguments of a call, all else in them is compared with what earlier calls were given.

So a method of a plain class sees what its object holds now. A trace gets a copy of the object with traced arrays in it. What the
copy cannot hold raises an error where the method reads it. What the method changes in the copy would be lost, so it is refused.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from aspen_jax.api import arguments, nnx_state, statics
from aspen_jax.api.known_objects import KnownObjects
from aspen_jax.api.skeletons import (
    ARRAY,
    Layout,
    Making,
    Node,
    Rest,
    Unseen,
    attributes,
    forget_cached_properties,
    layout_of,
    make_again,
    make_dict,
    make_holder,
    make_list,
    make_number,
    make_numpy_scalar,
    make_object,
    make_set,
    make_slice,
    make_static,
    make_tree,
    make_tuple,
    make_unseen,
    opened_layouts,
    read,
)
from aspen_jax.api.weights import is_prepared
from aspen_jax.errors import InputError

_LARGEST = 10_000  # values in an object; reading more of them at each call would take longer than most calls
_NUMBERS = (int, float, complex)


@jax.tree_util.register_pytree_with_keys_class
class Opened:
    """An object taken apart: a pytree of its arrays, prepared ones too, of numbers that often change, and of objects of flax.nnx.

    Attributes:
        rest: all else.
        children: the children.
    """

    __slots__ = ("children", "rest")

    def __init__(self, rest: Rest, children: Sequence[Any]):
        self.rest = rest
        self.children = children

    def tree_flatten(self) -> tuple[Sequence[Any], Rest]:
        """Takes the object apart for JAX."""
        return self.children, self.rest

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], Rest]:
        """Takes the object apart for JAX."""
        making = Making(self.rest, [object()] * len(self.children))
        making.whole("")
        places = (making.places[index].lstrip(".") for index in range(len(self.children)))
        return [(jax.tree_util.GetAttrKey(place), child) for place, child in zip(places, self.children, strict=True)], self.rest

    @classmethod
    def tree_unflatten(cls, rest: Rest, children: Sequence[Any]) -> Opened:
        """Takes the object apart for JAX."""
        return cls(rest, children)


def opened(tree: Any) -> Any:
    """A tree of arguments whose partials and bound methods are taken apart, where it has any.

    Raises:
        InputError: one of them holds what is neither an array nor static.
    """
    leaves, structure = jax.tree.flatten(tree)
    if statics.HOLDERS.keys().isdisjoint(map(type, leaves)):
        return tree
    return structure.unflatten([_opened_holder(leaf) if type(leaf) in statics.HOLDERS else leaf for leaf in leaves])


def _opened_holder(value: Any) -> Opened:
    opening = _Opening(sees_objects=False)
    try:
        skeleton = opening.node(value)
    except _Refused as error:
        held = error.args[0]
        raise InputError(
            f"an argument is {arguments.shown(value)}, which holds {arguments.shown(held)} of type {type(held).__name__}, "
            f"neither an array nor static; {arguments.WHAT_TO_WRITE}"
        ) from None
    return Opened(Rest(skeleton, tuple(map(repr, opening.numbers))), opening.children)


def opened_self(instance: Any, name: str, known: KnownObjects) -> Any:
    """The object of a method as an argument: itself if it is a pytree, of flax.nnx or static, otherwise taken apart.

    Args:
        instance: the object.
        name: of the method, for errors.
        known: of objects of earlier calls.

    Raises:
        InputError: it is neither, and its state is not in its attributes.
    """
    kind = type(instance)
    if not jax.tree_util.all_leaves([instance]) or nnx_state.is_object(instance):
        return instance
    layout = layout_of(kind)
    if layout is None or statics.never_changes(kind):
        if statics.is_static(instance) or arguments.is_array(instance, True):
            return instance
        raise InputError(
            f"{name}: self is {arguments.shown(instance)}, and what a {kind.__name__} holds cannot be seen, as it is not all in "
            f"Python attributes; register {kind.__name__} as a pytree, define __eq__ and __hash__ for what it holds, or decorate "
            "a function of the arrays that the method reads"
        )
    opening = _Opening(sees_objects=True)
    try:
        recognised = known.recognised(instance)
        if recognised is not None:
            return Opened(*recognised)
        skeleton = opening.object_node(instance, layout)
    except RecursionError:
        raise InputError(
            f"{name}: self of type {kind.__name__} holds objects in too many levels to compare them at each call; register "
            f"{kind.__name__} as a pytree, or decorate a function of the arrays that the method reads"
        ) from None
    rest = known.rest(skeleton, opening.numbers)
    return Opened(rest, opening.children + rest.moving(opening.numbers))


def closed(tree: Any) -> Any:
    """The tree with objects in place of those that were taken apart."""
    if not any(map(_is_opened, jax.tree.leaves(tree, is_leaf=_is_opened))):
        return tree
    return jax.tree.map(
        lambda leaf: Making(leaf.rest, leaf.children).whole("self") if _is_opened(leaf) else leaf, tree, is_leaf=_is_opened
    )


def on_objects(fun: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`fun` as a function of arguments that may be taken apart. It must not change them.

    Raises:
        InputError: when called, `fun` has changed an attribute of an object.
    """

    @functools.wraps(fun, updated=())
    def on_opened(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=_is_opened)
        if not any(map(_is_opened, leaves)):
            return fun(*args, **kwargs)
        makings = [Making(leaf.rest, leaf.children) if _is_opened(leaf) else None for leaf in leaves]
        wholes = [leaf if making is None else making.whole("self") for leaf, making in zip(leaves, makings, strict=True)]
        args, kwargs = structure.unflatten(wholes)
        result = fun(*args, **kwargs)
        for making, whole in zip(makings, wholes, strict=True):
            if making is not None:
                _check_unchanged(making, whole, name)
        return result

    return on_opened


def _is_opened(item: Any) -> bool:
    return type(item) is Opened


class _Refused(Exception):
    """This value is neither an array nor static."""


_OPAQUE = "what a {} holds cannot be seen"
_LARGE = f"its object holds more than {_LARGEST:,} values"


class _Opening:
    """Takes values apart."""

    def __init__(self, *, sees_objects: bool):
        self.children: list[Any] = []
        self.numbers: list[Any] = []
        self._sees_objects = sees_objects
        self._numbered: dict[int, int] = {}  # by identity: what the object holds twice, or in a circle, is one thing in its copy
        self._kept: list[Any] = []  # an identity means something as long as its value lives
        self._left = _LARGEST

    def node(self, value: Any) -> Node:
        """The skeleton of a value."""
        kind = type(value)
        if kind in arguments.traced_types:
            self.children.append(value)
            return ARRAY
        if kind in _NUMBERS:
            self.numbers.append(value)
            return (make_number, kind)
        if kind is str or kind is bool or value is None:
            return (make_static, kind, value)
        self._left -= 1
        if self._left < 0:
            return self._unseen(value, _LARGE)
        layout = opened_layouts.get(id(kind))
        if layout is not None and self._sees_objects:
            return self.object_node(value, layout)
        take = _BY_TYPE.get(kind)
        if take is not None:
            return take(self, value)
        if kind in statics.HOLDERS:
            return (make_holder, kind, tuple(map(self.node, statics.HOLDERS[kind].parts(value))))
        return self._other(value)

    def _other(self, value: Any) -> Node:
        kind = type(value)
        if kind is Unseen:
            return read(value, "_node")
        if nnx_state.is_object(value) or is_prepared(value):
            self.children.append(value)
            return ARRAY
        if not jax.tree_util.all_leaves([value]):
            leaves, tree = jax.tree.flatten(value, is_leaf=lambda item: nnx_state.is_object(item) and item is not value)
            return (make_tree, tree, tuple(map(self.node, leaves)))
        if isinstance(value, np.number | np.bool_):  # immutable, and may be wanted as it is, as in range(self.n)
            return (make_numpy_scalar, value.dtype, value.tobytes())
        if arguments.is_array(value, False):
            self.children.append(value)
            return ARRAY
        if statics.is_static(value):
            return (make_static, kind, value, hash(value))  # if the value changes it is still equal to itself, its hash is not
        layout = layout_of(kind)
        if self._sees_objects and layout is not None:
            if not statics.hashes_itself(kind):
                opened_layouts[id(kind)] = layout
            return self.object_node(value, layout)
        return self._unseen(value, _OPAQUE)

    def _unseen(self, value: Any, reason: str) -> Node:
        if not self._sees_objects:
            raise _Refused(value)
        return (make_unseen, type(value), reason)

    def _again(self, value: Any) -> Node | None:
        """What stands for a value that was met before."""
        key, numbered = id(value), self._numbered
        if key in numbered:
            return (make_again, numbered[key])
        numbered[key] = len(numbered)
        self._kept.append(value)
        return None

    def top(self, value: Any) -> Node:
        """The skeleton of an object whatever its type says of equality."""
        layout = layout_of(type(value))
        return self.node(value) if layout is None else self.object_node(value, layout)

    def object_node(self, value: Any, layout: Layout) -> Node:
        """The skeleton of a plain object."""
        again = self._again(value)
        if again is not None:
            return again
        if layout.slots or not layout.has_dict:
            names, values = attributes(value, layout)
            return (make_object, layout, names, self._nodes(values))
        fields = read(value, "__dict__")
        return (make_object, layout, tuple(fields), self._nodes(fields.values()))

    def list_node(self, value: list[Any]) -> Node:
        """The skeleton of a list."""
        if not self._is_small(value):
            return self._unseen(value, _LARGE)
        return self._again(value) or (make_list, self._nodes(value))

    def tuple_node(self, value: tuple[Any, ...]) -> Node:
        """The skeleton of a tuple."""
        return (make_tuple, self._nodes(value)) if self._is_small(value) else self._unseen(value, _LARGE)

    def dict_node(self, value: dict[Any, Any]) -> Node:
        """The skeleton of a dictionary, in its order, which JAX would not keep."""
        if not self._is_small(value):
            return self._unseen(value, _LARGE)
        if not all(map(statics.is_static, value)):
            return self._unseen(value, _OPAQUE)
        return self._again(value) or (make_dict, tuple(value), self._nodes(value.values()))

    def set_node(self, value: set[Any]) -> Node:
        """The skeleton of a set."""
        items = frozenset(value)
        return (make_set, items) if statics.is_static(items) else self._unseen(value, _OPAQUE)

    def slice_node(self, value: slice) -> Node:
        """The skeleton of a slice, which has no hash before Python 3.12."""
        return (make_slice, *map(self.node, (value.start, value.stop, value.step)))

    def _is_small(self, values: Any) -> bool:
        if len(values) > self._left:
            return False
        self._left -= len(values)
        return True

    def _nodes(self, values: Any) -> Node:
        if arguments.traced_types.issuperset(map(type, values)):
            self.children.extend(values)
            return (ARRAY,) * len(values)
        return tuple(map(self.node, values))


_BY_TYPE: dict[type, Callable[[_Opening, Any], Node]] = {
    list: _Opening.list_node,
    tuple: _Opening.tuple_node,
    dict: _Opening.dict_node,
    set: _Opening.set_node,
    slice: _Opening.slice_node,
}


def _check_unchanged(making: Making, whole: Any, name: str) -> None:
    """Refuses what a function has changed in an object, as only its copy has changed.

    Raises:
        InputError: it has changed something.
    """
    for made, names in making.copies:
        forget_cached_properties(made, names)
    fresh = Making(making.rest, making.children).whole("self")
    if not _alike(fresh, whole):
        where = (
            f"self.{_changed_attribute(fresh, whole, making.rest.skeleton[1])}"
            if making.rest.skeleton[0] is make_object
            else "what an argument holds"
        )
        raise InputError(
            f"{name} changes {where}, which a trace cannot keep; return the new value and assign it outside, or register the "
            "class as a pytree and return the new object"
        )


def _alike(before: Any, after: Any) -> bool:
    one, two = _Opening(sees_objects=True), _Opening(sees_objects=True)
    if one.top(before) != two.top(after) or list(map(repr, one.numbers)) != list(map(repr, two.numbers)):
        return False
    return len(one.children) == len(two.children) and all(map(operator.is_, one.children, two.children))


def _changed_attribute(before: Any, after: Any, layout: Layout) -> str:
    """The first attribute that is another one."""
    old, new = (dict(zip(*attributes(item, layout), strict=True)) for item in (before, after))
    names = dict.fromkeys((*old, *new))
    return next((name for name in names if name not in old or name not in new or not _alike(old[name], new[name])), "")

"""Objects taken apart: their arrays are arguments of a call, all else in them is compared with what earlier calls were given.

So a method of a plain class sees what its object holds now. A trace gets a copy of the object with traced arrays in it. What the
copy cannot hold raises an error where the method reads it. What the method changes in the copy would be lost, so it is refused.

A plain object is one whose state is all in its attributes, so that it can be read and copied without its help.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from aspen_jax.api import arguments, nnx_state, statics
from aspen_jax.api.weights import is_prepared
from aspen_jax.errors import InputError

# Skeleton of what was taken apart: a tuple for each value in it, of the function that makes it and of what that needs.
Node = tuple[Any, ...]

_LARGEST = 10_000  # values in an object; reading more of them at each call would take longer than most calls
_NUMBERS = (int, float, complex)
_IS_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, or by C code as one
_read = object.__getattribute__
_WORD = object.__basicsize__ // 2


class Rest(NamedTuple):
    """What is compared of an object that is taken apart.

    Attributes:
        skeleton: all but arrays and numbers.
        fixed: its Python numbers in words; None for those that are traced.
    """

    skeleton: Node
    fixed: tuple[str | None, ...]

    def __repr__(self) -> str:
        layout = self.skeleton[1]
        kind = layout.kind() if isinstance(layout, _Layout) else layout
        return f"<{getattr(kind, '__name__', kind)} and what it holds>"


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
        """For JAX."""
        return self.children, self.rest

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], Rest]:
        """For JAX."""
        making = _Making(self.rest, [object()] * len(self.children))
        making.whole("")
        places = (making.places[index].lstrip(".") for index in range(len(self.children)))
        return [(jax.tree_util.GetAttrKey(place), child) for place, child in zip(places, self.children, strict=True)], self.rest

    @classmethod
    def tree_unflatten(cls, rest: Rest, children: Sequence[Any]) -> Opened:
        """For JAX."""
        return cls(rest, children)


class Numbers:
    """Which Python numbers of objects change so often that they are traced, as numbers that are arguments are."""

    _PATIENCE = 4  # values of a number, each with a trace of its own

    def __init__(self) -> None:
        self._seen: dict[Node, tuple[set[str], ...]] = {}

    def fixed(self, skeleton: Node, numbers: Sequence[Any]) -> tuple[str | None, ...]:
        """The numbers in words, None for those that are traced."""
        texts = tuple(map(repr, numbers))
        seen = self._seen.get(skeleton)
        if seen is None:
            seen = self._seen[skeleton] = tuple(set() for _ in texts)
        for known, text in zip(seen, texts, strict=True):
            if len(known) <= self._PATIENCE:
                known.add(text)
        return tuple(None if len(known) > self._PATIENCE else text for known, text in zip(seen, texts, strict=True))


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


def opened_self(instance: Any, name: str, numbers: Numbers) -> Any:
    """The object of a method as an argument: itself if it is a pytree, of flax.nnx or static, otherwise taken apart.

    Args:
        instance: the object.
        name: of the method, for errors.
        numbers: what is known of numbers in objects.

    Raises:
        InputError: it is neither, and its state is not in its attributes.
    """
    kind = type(instance)
    if not jax.tree_util.all_leaves([instance]) or nnx_state.is_object(instance):
        return instance
    layout = _layout(kind)
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
        skeleton = opening.object_node(instance, layout)
    except RecursionError:
        raise InputError(
            f"{name}: self of type {kind.__name__} holds objects in too many levels to compare them at each call; register "
            f"{kind.__name__} as a pytree, or decorate a function of the arrays that the method reads"
        ) from None
    fixed: tuple[str | None, ...] = ()
    if opening.numbers:
        fixed = numbers.fixed(skeleton, opening.numbers)
        moving = (number for number, text in zip(opening.numbers, fixed, strict=True) if text is None)
        opening.children.extend(moving)
    return Opened(Rest(skeleton, fixed), opening.children)


def closed(tree: Any) -> Any:
    """The tree with objects in place of those that were taken apart."""
    if not any(map(_is_opened, jax.tree.leaves(tree, is_leaf=_is_opened))):
        return tree
    return jax.tree.map(
        lambda leaf: _Making(leaf.rest, leaf.children).whole("self") if _is_opened(leaf) else leaf, tree, is_leaf=_is_opened
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
        makings = [_Making(leaf.rest, leaf.children) if _is_opened(leaf) else None for leaf in leaves]
        wholes = [leaf if making is None else making.whole("self") for leaf, making in zip(leaves, makings, strict=True)]
        args, kwargs = structure.unflatten(wholes)
        result = fun(*args, **kwargs)
        for making, whole in zip(makings, wholes, strict=True):
            if making is not None:
                making.check_unchanged(whole, name)
        return result

    return on_opened


def _is_opened(item: Any) -> bool:
    return type(item) is Opened


class _Refused(Exception):
    """This value is neither an array nor static."""


class Unseen:
    """Stands in a trace for an attribute that cannot be compared from call to call: a lock, a file, a random generator ...

    An object may hold one as long as the method does not use it.
    """

    __slots__ = ("_node", "_path")

    def __init__(self, node: Node, path: str):
        object.__setattr__(self, "_node", node)
        object.__setattr__(self, "_path", path)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        path, (_, kind, reason) = _read(self, "_path"), _read(self, "_node")
        raise InputError(
            f"{path} is read by a decorated method, and {reason.format(kind.__name__)}, so a change in it would not be seen; "
            "make what the method reads of it an argument, or an attribute that is an array, a number, a string or a plain object"
        )

    __getattribute__ = __setattr__ = __delattr__ = __call__ = __getitem__ = __setitem__ = __iter__ = __next__ = _refuse
    __len__ = __contains__ = __enter__ = __exit__ = __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = _refuse
    __rmatmul__ = __pow__ = __rpow__ = __neg__ = __int__ = __float__ = __index__ = __hash__ = __str__ = __repr__ = _refuse


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
            return _ARRAY
        if kind in _NUMBERS:
            self.numbers.append(value)
            return (_number, kind)
        if kind is str or kind is bool or value is None:
            return (_static, kind, value)
        self._left -= 1
        if self._left < 0:
            return self._unseen(value, _LARGE)
        layout = _opened_layouts.get(id(kind))
        if layout is not None and self._sees_objects:
            return self.object_node(value, layout)
        take = _BY_TYPE.get(kind)
        if take is not None:
            return take(self, value)
        if kind in statics.HOLDERS:
            return (_holder, kind, tuple(map(self.node, statics.HOLDERS[kind].parts(value))))
        return self._other(value)

    def _other(self, value: Any) -> Node:
        kind = type(value)
        if kind is Unseen:
            return _read(value, "_node")
        if nnx_state.is_object(value) or is_prepared(value):
            self.children.append(value)
            return _ARRAY
        if not jax.tree_util.all_leaves([value]):
            leaves, tree = jax.tree.flatten(value, is_leaf=lambda item: nnx_state.is_object(item) and item is not value)
            return (_tree, tree, tuple(map(self.node, leaves)))
        if isinstance(value, np.number | np.bool_):  # immutable, and may be wanted as it is, as in range(self.n)
            return (_numpy_scalar, value.dtype, value.tobytes())
        if arguments.is_array(value, False):
            self.children.append(value)
            return _ARRAY
        if statics.is_static(value):
            return (_static, kind, value, hash(value))  # if the value changes it is still equal to itself, its hash is not
        layout = _layout(kind)
        if self._sees_objects and layout is not None:
            if not statics.hashes_itself(kind):
                _opened_layouts[id(kind)] = layout
            return self.object_node(value, layout)
        return self._unseen(value, _OPAQUE)

    def _unseen(self, value: Any, reason: str) -> Node:
        if not self._sees_objects:
            raise _Refused(value)
        return (_unseen, type(value), reason)

    def _again(self, value: Any) -> Node | None:
        """What stands for a value that was met before."""
        key, numbered = id(value), self._numbered
        if key in numbered:
            return (_again, numbered[key])
        numbered[key] = len(numbered)
        self._kept.append(value)
        return None

    def top(self, value: Any) -> Node:
        """The skeleton of an object whatever its type says of equality."""
        layout = _layout(type(value))
        return self.node(value) if layout is None else self.object_node(value, layout)

    def object_node(self, value: Any, layout: _Layout) -> Node:
        """The skeleton of a plain object."""
        again = self._again(value)
        if again is not None:
            return again
        if layout.slots or not layout.has_dict:
            names, values = _attributes(value, layout)
            return (_object, layout, names, self._nodes(values))
        fields = _read(value, "__dict__")
        return (_object, layout, tuple(fields), self._nodes(fields.values()))

    def list_node(self, value: list[Any]) -> Node:
        """The skeleton of a list."""
        if not self._is_small(value):
            return self._unseen(value, _LARGE)
        return self._again(value) or (_list, self._nodes(value))

    def tuple_node(self, value: tuple[Any, ...]) -> Node:
        """The skeleton of a tuple."""
        return (_tuple, self._nodes(value)) if self._is_small(value) else self._unseen(value, _LARGE)

    def dict_node(self, value: dict[Any, Any]) -> Node:
        """The skeleton of a dictionary, in its order, which JAX would not keep."""
        if not self._is_small(value):
            return self._unseen(value, _LARGE)
        if not all(map(statics.is_static, value)):
            return self._unseen(value, _OPAQUE)
        return self._again(value) or (_dict, tuple(value), self._nodes(value.values()))

    def set_node(self, value: set[Any]) -> Node:
        """The skeleton of a set."""
        items = frozenset(value)
        return (_set, items) if statics.is_static(items) else self._unseen(value, _OPAQUE)

    def slice_node(self, value: slice) -> Node:
        """The skeleton of a slice, which has no hash before Python 3.12."""
        return (_slice, *map(self.node, (value.start, value.stop, value.step)))

    def _is_small(self, values: Any) -> bool:
        if len(values) > self._left:
            return False
        self._left -= len(values)
        return True

    def _nodes(self, values: Any) -> Node:
        if arguments.traced_types.issuperset(map(type, values)):
            self.children.extend(values)
            return (_ARRAY,) * len(values)
        return tuple(map(self.node, values))


_BY_TYPE: dict[type, Callable[[_Opening, Any], Node]] = {
    list: _Opening.list_node,
    tuple: _Opening.tuple_node,
    dict: _Opening.dict_node,
    set: _Opening.set_node,
    slice: _Opening.slice_node,
}


class _Making:
    """Makes an object as it was before it was taken apart, with these children."""

    def __init__(self, rest: Rest, children: Sequence[Any]):
        self._rest = rest
        self._children = children
        self._next = 0
        self._numbers = iter(rest.fixed)
        self._moving = iter(range(len(children) - rest.fixed.count(None), len(children)))
        self._copies: list[tuple[Any, tuple[str, ...]]] = []
        self.places: dict[int, str] = {}
        self.made: list[Any] = []

    def whole(self, path: str) -> Any:
        """The object, under this name in errors."""
        return self.value(self._rest.skeleton, path)

    def value(self, node: Node, path: str) -> Any:
        """The value of a skeleton's node."""
        return node[0](self, node, path)

    def child(self, path: str) -> Any:
        """The next array."""
        self.places[self._next] = path
        self._next += 1
        return self._children[self._next - 1]

    def number(self, kind: type, path: str) -> Any:
        """The next number."""
        text = next(self._numbers)
        if text is not None:
            return kind(text)
        index = next(self._moving)
        self.places[index] = path
        return self._children[index]

    def copy_of(self, layout: _Layout, names: tuple[str, ...]) -> Any:
        """A copy without attributes yet."""
        made = object.__new__(layout.kind())  # type: ignore[arg-type]  # the object that was taken apart has it
        self._copies.append((made, names))
        self.made.append(made)
        return made

    def check_unchanged(self, whole: Any, name: str) -> None:
        """Refuses what the function has changed in the object, as only a copy has changed.

        Raises:
            InputError: it has changed something.
        """
        for made, names in self._copies:
            _forget_cached_properties(made, names)
        fresh = _Making(self._rest, self._children).whole("self")
        if not _alike(fresh, whole):
            where = (
                f"self.{_changed_attribute(fresh, whole, self._rest.skeleton[1])}"
                if self._rest.skeleton[0] is _object
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


def _changed_attribute(before: Any, after: Any, layout: _Layout) -> str:
    """The first attribute that is another one."""
    old, new = (dict(zip(*_attributes(item, layout), strict=True)) for item in (before, after))
    names = dict.fromkeys((*old, *new))
    return next((name for name in names if name not in old or name not in new or not _alike(old[name], new[name])), "")


def _array(making: _Making, node: Node, path: str) -> Any:
    del node
    return making.child(path)


_ARRAY: Node = (_array,)


def _number(making: _Making, node: Node, path: str) -> Any:
    return making.number(node[1], path)


def _numpy_scalar(making: _Making, node: Node, path: str) -> Any:
    del making, path
    return np.frombuffer(node[2], node[1])[0]


def _static(making: _Making, node: Node, path: str) -> Any:
    del making, path
    return node[2]


def _unseen(making: _Making, node: Node, path: str) -> Any:
    del making
    return Unseen(node, path)


def _again(making: _Making, node: Node, path: str) -> Any:
    del path
    return making.made[node[1]]


def _holder(making: _Making, node: Node, path: str) -> Any:
    return statics.HOLDERS[node[1]].make(*(making.value(item, path) for item in node[2]))


def _tree(making: _Making, node: Node, path: str) -> Any:
    return node[1].unflatten([making.value(item, path) for item in node[2]])


def _tuple(making: _Making, node: Node, path: str) -> Any:
    return tuple(making.value(item, f"{path}[{index}]") for index, item in enumerate(node[1]))


def _list(making: _Making, node: Node, path: str) -> Any:
    made: list[Any] = []
    making.made.append(made)
    made.extend(_tuple(making, node, path))
    return made


def _dict(making: _Making, node: Node, path: str) -> Any:
    made: dict[Any, Any] = {}
    making.made.append(made)
    for key, item in zip(node[1], node[2], strict=True):
        made[key] = making.value(item, f"{path}[{key!r}]")
    return made


def _set(making: _Making, node: Node, path: str) -> Any:
    del making, path
    return set(node[1])


def _slice(making: _Making, node: Node, path: str) -> Any:
    return slice(*(making.value(item, path) for item in node[1:]))


def _object(making: _Making, node: Node, path: str) -> Any:
    _, layout, names, nodes = node
    made = making.copy_of(layout, names)
    fields = _read(made, "__dict__") if layout.has_dict else {}
    for name, item in zip(names, nodes, strict=True):
        value = making.value(item, f"{path}.{name}")
        if name in layout.slots:
            object.__setattr__(made, name, value)
        else:
            fields[name] = value
    return made


class _Layout(NamedTuple):
    """Where objects of a plain type keep what they hold.

    Attributes:
        kind: the type, weakly, as what is compiled for an object must not keep its class.
        slots: names of its slots, those of its bases too.
        has_dict: whether there are other attributes.
    """

    kind: weakref.ref[type]
    slots: tuple[str, ...]
    has_dict: bool


# By identity of a type, which is faster to look up than a weak reference to it: its layout, None if it is not plain.
_layouts: dict[int, _Layout | None] = {}
# Those of types whose objects are taken apart wherever they are met.
_opened_layouts: dict[int, _Layout] = {}


def _layout(kind: type) -> _Layout | None:
    """The layout of a type, if all that an object of it holds is in its attributes, and a copy does no harm when it goes."""
    key = id(kind)
    if key not in _layouts:
        slots = _slots(kind)
        words = (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0) + len(slots)
        is_plain = (
            bool(kind.__flags__ & _IS_HEAP_TYPE)
            and kind.__itemsize__ == 0
            and kind.__basicsize__ <= object.__basicsize__ + words * _WORD
            and not issubclass(kind, type)
            and not hasattr(kind, "__del__")
        )
        weakref.finalize(kind, _forget_type, key).atexit = False
        _layouts[key] = _Layout(weakref.ref(kind), slots, bool(kind.__dictoffset__)) if is_plain else None
    return _layouts[key]


def _forget_type(key: int) -> None:
    _layouts.pop(key, None)
    _opened_layouts.pop(key, None)


def _slots(kind: type) -> tuple[str, ...]:
    """Names of the slots that class statements made."""
    members = (vars(base).items() for base in kind.__mro__ if "__slots__" in vars(base))
    names = (name for items in members for name, item in items if type(item) is types.MemberDescriptorType)
    return tuple(dict.fromkeys(names))


def _attributes(value: Any, layout: _Layout) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Names and values of what a plain object holds, whatever its class makes of reading them."""
    found = {}
    for name in layout.slots:
        with contextlib.suppress(AttributeError):  # nothing was assigned to it yet
            found[name] = _read(value, name)
    if layout.has_dict:
        found |= _read(value, "__dict__")
    return tuple(found), tuple(found.values())


def _forget_cached_properties(made: Any, names: tuple[str, ...]) -> None:
    """Drops what a `functools.cached_property` has put beside these attributes; it is computed again when it is wanted."""
    kind = type(made)
    if kind.__dictoffset__:
        fields = _read(made, "__dict__")
        for name in set(fields).difference(names):
            if isinstance(getattr(kind, name, None), functools.cached_property):
                del fields[name]

"""What an object held, without its arrays and numbers, and how a copy of it is made of that and of others.

A plain object is one whose state is all in its attributes, so that it can be read and copied without its help.
"""

from __future__ import annotations

import contextlib
import functools
import types
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from aspen_jax.api import statics
from aspen_jax.errors import InputError

# Skeleton of what was taken apart: a tuple for each value in it, of the function that makes it and of what that needs.
Node = tuple[Any, ...]

_IS_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, or by C code as one
_WORD = object.__basicsize__ // 2

read = object.__getattribute__


class Rest:
    """What is compared of an object that is taken apart. Its hash is computed once: a skeleton may be large.

    Attributes:
        skeleton: all but arrays and numbers.
        fixed: its Python numbers in words; None for those that are traced.
    """

    __slots__ = ("_hash", "fixed", "skeleton")

    def __init__(self, skeleton: Node, fixed: tuple[str | None, ...]):
        self.skeleton = skeleton
        self.fixed = fixed
        self._hash = hash((skeleton, fixed))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Rest):
            return NotImplemented
        return self._hash == other._hash and self.fixed == other.fixed and self.skeleton == other.skeleton

    def moving(self, numbers: Sequence[Any]) -> list[Any]:
        """The object's numbers that are traced."""
        return [number for number, text in zip(numbers, self.fixed, strict=True) if text is None] if None in self.fixed else []

    def __repr__(self) -> str:
        layout = self.skeleton[1]
        kind = layout.kind() if isinstance(layout, Layout) else layout
        return f"<{getattr(kind, '__name__', kind)} and what it holds>"


class Unseen:
    """Stands in a trace for an attribute that cannot be compared from call to call: a lock, a file, a random generator ...

    An object may hold one as long as the method does not use it.
    """

    __slots__ = ("_node", "_path")

    def __init__(self, node: Node, path: str):
        object.__setattr__(self, "_node", node)
        object.__setattr__(self, "_path", path)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        path, (_, kind, reason) = read(self, "_path"), read(self, "_node")
        raise InputError(
            f"{path} is read by a decorated method, and {reason.format(kind.__name__)}, so a change in it would not be seen; "
            "make what the method reads of it an argument, or an attribute that is an array, a number, a string or a plain object"
        )

    __getattribute__ = __setattr__ = __delattr__ = __call__ = __getitem__ = __setitem__ = __iter__ = __next__ = _refuse
    __len__ = __contains__ = __enter__ = __exit__ = __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = _refuse
    __rmatmul__ = __pow__ = __rpow__ = __neg__ = __int__ = __float__ = __index__ = __hash__ = __str__ = __repr__ = _refuse


class Making:
    """Makes an object as it was before it was taken apart, with these children."""

    def __init__(self, rest: Rest, children: Sequence[Any]):
        self.rest = rest
        self.children = children
        self._next = 0
        self._numbers = iter(rest.fixed)
        self._moving = iter(range(len(children) - rest.fixed.count(None), len(children)))
        self.copies: list[tuple[Any, tuple[str, ...]]] = []
        self.places: dict[int, str] = {}
        self.made: list[Any] = []

    def whole(self, path: str) -> Any:
        """The object, under this name in errors."""
        return self.value(self.rest.skeleton, path)

    def value(self, node: Node, path: str) -> Any:
        """The value of a skeleton's node."""
        return node[0](self, node, path)

    def child(self, path: str) -> Any:
        """The next array."""
        self.places[self._next] = path
        self._next += 1
        return self.children[self._next - 1]

    def number(self, kind: type, path: str) -> Any:
        """The next number."""
        text = next(self._numbers)
        if text is not None:
            return kind(text)
        index = next(self._moving)
        self.places[index] = path
        return self.children[index]

    def copy_of(self, layout: Layout, names: tuple[str, ...]) -> Any:
        """A copy without attributes yet."""
        made = object.__new__(layout.kind())  # type: ignore[arg-type]  # the object that was taken apart has it
        self.copies.append((made, names))
        self.made.append(made)
        return made


def make_array(making: Making, node: Node, path: str) -> Any:
    del node
    return making.child(path)


ARRAY: Node = (make_array,)


def make_number(making: Making, node: Node, path: str) -> Any:
    return making.number(node[1], path)


def make_numpy_scalar(making: Making, node: Node, path: str) -> Any:
    del making, path
    return np.frombuffer(node[2], node[1])[0]


def make_static(making: Making, node: Node, path: str) -> Any:
    del making, path
    return node[2]


def make_unseen(making: Making, node: Node, path: str) -> Any:
    del making
    return Unseen(node, path)


def make_again(making: Making, node: Node, path: str) -> Any:
    del path
    return making.made[node[1]]


def make_holder(making: Making, node: Node, path: str) -> Any:
    return statics.HOLDERS[node[1]].make(*(making.value(item, path) for item in node[2]))


def make_tree(making: Making, node: Node, path: str) -> Any:
    return node[1].unflatten([making.value(item, path) for item in node[2]])


def make_tuple(making: Making, node: Node, path: str) -> Any:
    return tuple(making.value(item, f"{path}[{index}]") for index, item in enumerate(node[1]))


def make_list(making: Making, node: Node, path: str) -> Any:
    made: list[Any] = []
    making.made.append(made)
    made.extend(make_tuple(making, node, path))
    return made


def make_dict(making: Making, node: Node, path: str) -> Any:
    made: dict[Any, Any] = {}
    making.made.append(made)
    for key, item in zip(node[1], node[2], strict=True):
        made[key] = making.value(item, f"{path}[{key!r}]")
    return made


def make_set(making: Making, node: Node, path: str) -> Any:
    del making, path
    return set(node[1])


def make_slice(making: Making, node: Node, path: str) -> Any:
    return slice(*(making.value(item, path) for item in node[1:]))


def make_object(making: Making, node: Node, path: str) -> Any:
    _, layout, names, nodes = node
    made = making.copy_of(layout, names)
    fields = read(made, "__dict__") if layout.has_dict else {}
    for name, item in zip(names, nodes, strict=True):
        value = making.value(item, f"{path}.{name}")
        if name in layout.slots:
            object.__setattr__(made, name, value)
        else:
            fields[name] = value
    return made


class Layout(NamedTuple):
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
_layouts: dict[int, Layout | None] = {}
# Those of types whose objects are taken apart wherever they are met.
opened_layouts: dict[int, Layout] = {}


def layout_of(kind: type) -> Layout | None:
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
        _layouts[key] = Layout(weakref.ref(kind), slots, bool(kind.__dictoffset__)) if is_plain else None
    return _layouts[key]


def _forget_type(key: int) -> None:
    _layouts.pop(key, None)
    opened_layouts.pop(key, None)


def _slots(kind: type) -> tuple[str, ...]:
    """Names of the slots that class statements made."""
    members = (vars(base).items() for base in kind.__mro__ if "__slots__" in vars(base))
    names = (name for items in members for name, item in items if type(item) is types.MemberDescriptorType)
    return tuple(dict.fromkeys(names))


def attributes(value: Any, layout: Layout) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Names and values of what a plain object holds, whatever its class makes of reading them."""
    found = {}
    for name in layout.slots:
        with contextlib.suppress(AttributeError):  # nothing was assigned to it yet
            found[name] = read(value, name)
    if layout.has_dict:
        found |= read(value, "__dict__")
    return tuple(found), tuple(found.values())


def forget_cached_properties(made: Any, names: tuple[str, ...]) -> None:
    """Drops what a `functools.cached_property` has put beside these attributes; it is computed again when it is wanted."""
    kind = type(made)
    if kind.__dictoffset__:
        fields = read(made, "__dict__")
        for name in set(fields).difference(names):
            if isinstance(getattr(kind, name, None), functools.cached_property):
                del fields[name]

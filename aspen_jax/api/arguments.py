"""Arguments of a decorated function: which leaves are traced, which are static, and which cannot be either."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from aspen_jax.api import equinox_modules, statics
from aspen_jax.errors import AspenError, InputError
from aspen_jax.ir.leaf_names import path_name

_SCALARS = frozenset((int, float, complex))

# Types whose every instance is traced. jax.typeof decides about the first instance of a type; it costs microseconds a leaf.
traced_types: set[type] = set()


class Structure:
    """All of a call's arguments that is not traced: the tree and the static leaves. Hashable; equal where one trace serves both.

    Attributes:
        tree: structure of (args, kwargs).
        static: position and value of each static leaf.
        has_scalars: whether Python numbers are among the traced leaves.
    """

    __slots__ = ("_hash", "_key", "has_scalars", "static", "tree")

    def __init__(self, tree: Any, static: tuple[tuple[int, Any], ...], has_scalars: bool):
        self.tree = tree
        self.static = static
        self.has_scalars = has_scalars
        # 1, True and 1.0 are equal, so are 0.0 and -0.0, and nan is not even equal to itself; all of them trace differently.
        self._key = (tree, tuple((index, type(leaf), repr(leaf) if type(leaf) in _SCALARS else leaf) for index, leaf in static))

        self._hash = hash(self._key)  # of now: a static object may be changed later, and be equal to itself all the same

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and self._hash == other._hash and self._key == other._key

    def traced(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) with the traced leaves only; static ones are None, which is a pytree without leaves."""
        return self._unflatten(leaves, static=False)

    def whole(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) as the function is to see them."""
        return self._unflatten(leaves, static=True)

    def _unflatten(self, leaves: Sequence[Any], *, static: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
        merged = list(leaves)
        for index, leaf in self.static:
            merged.insert(index, leaf if static else None)
        return jax.tree.unflatten(self.tree, merged)


def split(leaves: Sequence[Any], tree: Any, *, scalars_static: bool, shapes_traced: bool) -> tuple[Structure, list[Any]]:
    """Parts the leaves of (args, kwargs) into static and traced ones.

    Arrays are traced, and so are Python's int, float and complex, unless `scalars_static` or in modules of Equinox. Anything else
    has to be static: bool, str, functions, enums, dtypes ... (`statics.is_static`).

    Raises:
        HolderLeaf: a leaf is what it holds, such as a bound method; `objects.opened` takes it apart.
        RefusedLeaf: a leaf is neither an array nor static.
    """
    if not scalars_static and traced_types.issuperset(map(type, leaves)):
        return Structure(tree, (), False), list(leaves)
    static = []
    traced = []
    has_scalars = False
    may_be_traced = not scalars_static and not _SCALARS.isdisjoint(map(type, leaves))
    of_modules = equinox_modules.leaves_of_modules(tree) if may_be_traced else frozenset()
    for index, leaf in enumerate(leaves):
        as_array = getattr(leaf, "__jax_array__", None)
        if as_array is not None and not is_array(leaf, shapes_traced):
            leaf = as_array()
        if may_be_traced and type(leaf) in _SCALARS and index not in of_modules:
            has_scalars = True
            traced.append(leaf)
        elif is_array(leaf, shapes_traced):
            traced.append(leaf)
        elif type(leaf) in statics.HOLDERS:
            raise HolderLeaf
        elif statics.is_static(leaf):
            static.append((index, leaf))
        else:
            raise RefusedLeaf(index)
    return Structure(tree, tuple(static), has_scalars), traced


def tried(do: Callable[..., Any], structure: Structure, traced: list[Any]) -> tuple[bool, Any]:
    """Whether a function needs its Python numbers as they are, and if not, what `do` gives where they are traced.

    A function that needs them may say so by any error, its own ones too: `range(n)`, `math.sqrt(n)`, `isinstance(n, int)`.
    Whether the numbers were to blame shows when it is called with them.
    """
    try:
        return False, do(structure, traced)
    except (AspenError, jax.errors.JaxRuntimeError, RecursionError, MemoryError):
        raise
    except Exception:
        return True, None


class HolderLeaf(Exception):
    """A leaf is what it holds, which may be arrays."""


class RefusedLeaf(Exception):
    """The leaf at this position is neither an array nor static."""


def is_array(leaf: Any, shapes_traced: bool) -> bool:
    """Whether a leaf is traced: an array, or where `shapes_traced` what stands for one.

    Python's numbers are none, nor is anything that derives from them.
    """
    kind = type(leaf)
    if kind in traced_types:
        return True
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return shapes_traced
    if isinstance(leaf, int | float | complex) and not isinstance(leaf, np.generic):
        return False  # bool, IntEnum, ...: JAX would trace them, but they are there to be branched on
    try:
        jax.typeof(leaf)
    except (TypeError, ValueError):
        return False
    if isinstance(leaf, jax.Array):  # a numpy array may yet be one of strings or objects
        traced_types.add(kind)
    return True


def refuse(fun: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> InputError:
    """The error that names a leaf which is neither an array nor static."""
    where, leaf = _places(fun, args, kwargs)[index]
    what = f"{name}: argument {where} is {shown(leaf)} of type {type(leaf).__name__}"
    try:
        hash(leaf)
    except TypeError:
        return InputError(
            f"{what}, neither an array of numbers nor hashable; "
            "pass arrays, pytrees of arrays, or hashable values, or register its type as a pytree"
        )
    return InputError(
        f"{what}, which hashes by identity, or holds what does, so that a change in it would not be seen; {WHAT_TO_WRITE}"
    )


WHAT_TO_WRITE = (
    "pass the arrays and values that are read of it, close over it if it never changes, register its type as a pytree, or define "
    "__eq__ and __hash__ for what it holds"
)


def shown(value: Any) -> str:
    """A value in an error, cut off where it is long."""
    try:
        text = repr(value)
    except Exception:  # the type's own fault, which is not what the error is about
        text = object.__repr__(value)
    return text if len(text) <= 80 else text[:77] + "..."


def refuse_deleted(fun: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any], index: int) -> InputError:
    """The error that names an array which is no more."""
    where, _ = _places(fun, args, kwargs)[index]
    return InputError(
        f"{name}: argument {where} is an array that has been deleted or donated to another call; pass what that call "
        "returned, or a copy made before it"
    )


def explained(
    error: Exception, fun: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> InputError | None:
    """A clearer error where JAX refused the arguments themselves: arrays deleted, or on different devices."""
    if isinstance(error, AspenError):
        return None
    leaves = jax.tree.leaves((args, kwargs))
    arrays = [(i, leaf) for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)]
    if "deleted" in str(error):
        gone = next((index for index, leaf in arrays if leaf.is_deleted()), None)
        return None if gone is None else refuse_deleted(fun, name, args, kwargs, gone)
    if "incompatible devices" in str(error):
        places = _places(fun, args, kwargs)
        devices: dict[str, str] = {}
        for index, leaf in arrays:
            devices.setdefault(", ".join(sorted(map(str, leaf.sharding.device_set))), places[index][0])
        if len(devices) > 1:
            where = "; ".join(f"{place} is on {device}" for device, place in devices.items())
            return InputError(f"{name}: arguments are on different devices: {where}; move them with jax.device_put")
    return None


def names(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """The argument of each leaf of (args, kwargs) and the way to it, as in "params.dense.kernel"."""
    result = []
    for path, _ in jax.tree_util.tree_flatten_with_path((args, kwargs))[0]:
        argument = path[1].key if path[0].idx else _positional_name(fun, path[1].idx)
        argument = argument.replace("[", ".").removesuffix("]")  # as an index further inside
        result.append(path_name(argument, path[2:]))
    return result


def _places(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """The place of each leaf of (args, kwargs) in the function's own terms, and the leaf."""
    places = []
    for path, leaf in jax.tree_util.tree_flatten_with_path((args, kwargs))[0]:
        argument = path[1].key if path[0].idx else _positional_name(fun, path[1].idx)
        places.append((argument + jax.tree_util.keystr(path[2:]), leaf))
    return places


def _positional_name(fun: Callable[..., Any], index: int) -> str:
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for position, parameter in enumerate(parameters):
        if parameter.kind is parameter.VAR_POSITIONAL:
            return f"{parameter.name}[{index - position}]"
        if position == index:
            return parameter.name
    return f"args[{index}]"

"""Results of a decorated function: what is no array passes by JAX, which takes arrays only, and comes back as it was."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from aspen_jax.api import arguments, statics
from aspen_jax.errors import InputError

_NUMBERS = (bool, int, float, complex)


@jax.tree_util.register_pytree_node_class
class Returned:
    """A result some leaves of which are static. Its arrays are a pytree, for JAX.

    Attributes:
        arrays: the other leaves.
        tree: structure of the whole result.
        static: position and value of each static leaf.
    """

    def __init__(self, arrays: list[Any], tree: Any, static: tuple[tuple[int, Any], ...]):
        self.arrays = arrays
        self.tree = tree
        self.static = static

    def tree_flatten(self) -> tuple[list[Any], tuple[Any, Any]]:
        """Takes the object apart for JAX."""
        return self.arrays, (self.tree, self.static)

    @classmethod
    def tree_unflatten(cls, rest: tuple[Any, Any], arrays: Iterable[Any]) -> Returned:
        """Takes the object apart for JAX."""
        return cls(list(arrays), *rest)

    def whole(self, *, arrays_only: bool = False) -> Any:
        """What the function returned; None for what is static if `arrays_only`."""
        merged = list(self.arrays)
        for index, value in self.static:
            merged.insert(index, None if arrays_only else value)
        return jax.tree.unflatten(self.tree, merged)


def parted(result: Any, given: Iterable[Any], name: str) -> Any:
    """A result as JAX takes it: itself if it holds arrays and numbers only, otherwise a `Returned`.

    Python's numbers become arrays, as under `jax.jit`, unless they are static arguments that are handed through.

    Args:
        result: what the function returned.
        given: static arguments.
        name: of the function, for errors.

    Raises:
        InputError: a leaf is neither an array nor static.
    """
    leaves, tree = jax.tree.flatten(result)
    if arguments.traced_types.issuperset(map(type, leaves)):
        return result
    through = {id(value) for value in given if type(value) in _NUMBERS}
    static = []
    for index, leaf in enumerate(leaves):
        if type(leaf) in _NUMBERS:
            if id(leaf) in through:
                static.append((index, leaf))
        elif not _is_traced(leaf):
            if not statics.is_static(leaf):
                raise _refused(result, index, name)
            static.append((index, leaf))
    if not static:
        return result
    dropped = {index for index, _ in static}
    return Returned([leaf for index, leaf in enumerate(leaves) if index not in dropped], tree, tuple(static))


def whole(result: Any, *, arrays_only: bool = False) -> Any:
    """What the function returned, from what `parted` gave."""
    return result.whole(arrays_only=arrays_only) if type(result) is Returned else result


def arrays(result: Any, described: Any) -> list[Any]:
    """The leaves of what a function returned that JAX takes.

    Args:
        result: as the user sees it.
        described: a result of the same function as `parted` gave it.
    """
    leaves = jax.tree.leaves(result)
    static = {index for index, _ in described.static} if type(described) is Returned else set()
    return [leaf for index, leaf in enumerate(leaves) if index not in static]


def _is_traced(leaf: Any) -> bool:
    # JAX takes what has __jax_array__ and numbers of any type.
    return arguments.is_array(leaf, False) or hasattr(leaf, "__jax_array__") or isinstance(leaf, int | float | complex)


def _refused(result: Any, index: int, name: str) -> InputError:
    path, leaf = jax.tree_util.tree_flatten_with_path(result)[0][index]
    return InputError(
        f"{name} returns {arguments.shown(leaf)} of type {type(leaf).__name__} as result{jax.tree_util.keystr(path)}, neither an "
        "array nor static, so one object would be shared by all calls; return the arrays that it holds, or register its type as "
        "a pytree"
    )

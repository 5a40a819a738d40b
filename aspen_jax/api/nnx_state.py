"""State of flax.nnx: what a function changes in modules, optimizers and random streams that it is given is kept behind the call.

A trace works on copies, so a change in place would be lost without a word. This is how nnx's own transformations keep it, by
`nnx.update_context`: objects are taken apart outside, put together inside, and the other way round with what was changed.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer

from aspen_jax.api.weights import is_prepared
from aspen_jax.errors import AspenError, InputError

_TAG = "aspen"  # calls inside of others end before those do, so nnx's stack for each tag tells them apart


def is_object(item: Any) -> bool:
    """Whether it may change in place: a module, optimizer, stream or variable of nnx. An `nnx.State` is data."""
    return _nnx() is not None and _is_kind_of_object(type(item))


def call(do: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], known: dict[Any, bool]) -> Any:
    """What `do(args, kwargs)` gives, which ends in `traced`; what that has changed in objects is changed in those given here.

    Args:
        do: called with the arguments, their objects taken apart.
        args: positional arguments.
        kwargs: keyword arguments.
        known: what was found out about the structure of arguments in calls before; empty at first.
    """
    if _nnx() is None:
        return do(args, kwargs)
    leaves, tree = jax.tree.flatten((args, kwargs))
    if not (_holds_objects(tree, known) or any(map(_is_kind_of_object, set(map(type, leaves))))):
        result = do(args, kwargs)
        return result.put_back([], None) if type(result) is Outcome else result
    with _nnx().update_context(_TAG):
        pure = _taken_apart((args, kwargs), _TAG)
        result = do(*pure)
        if type(result) is not Outcome:
            return result
        if not result.computed or any(isinstance(leaf, Tracer) for leaf in result.computed):
            _check_trace((args, kwargs))
        return result.put_back(_arrays(pure), _TAG)


def traced(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `fun` gives inside the trace, in an `Outcome` where it returns objects or has changed those that `call` took apart."""
    if _nnx() is None:
        return fun(*args, **kwargs)
    given = _arrays((args, kwargs))
    taken = [item for item in _leaves((args, kwargs)) if isinstance(item, _Apart)]
    if taken:
        args, kwargs = _put_together((args, kwargs), _TAG, inner=True)
    objects = [item for item in _leaves((args, kwargs)) if is_object(item)] if taken else []
    before = jax.tree.flatten(_taken_apart(objects))
    try:
        result = fun(*args, **kwargs)
    except Exception as error:
        if isinstance(error, AspenError) or "different trace level" not in str(error):
            raise
        raise InputError(
            f"{getattr(fun, '__name__', fun)} changes an object of flax.nnx that it closes over "
            f"({str(error).splitlines()[0]}); make the object an argument, whose changes are kept, or take it apart by nnx.split "
            "and return its new state"
        ) from error
    if _same(before, jax.tree.flatten(_taken_apart(objects))) and not any(map(is_object, _leaves(result))):
        return result
    objects, result = _taken_apart((objects, result), _TAG if taken else None)
    index = {id(leaf): position for position, leaf in enumerate(given)}
    leaves, tree = jax.tree.flatten(objects)
    sources = tuple(index.get(id(leaf)) for leaf in leaves)
    computed = [leaf for leaf, source in zip(leaves, sources, strict=True) if source is None]
    return Outcome(computed, result, tree, sources)


@jax.tree_util.register_pytree_node_class
class Outcome:
    """What a function returns, and the arrays that it put into objects it was given.

    Attributes:
        computed: new arrays of the objects.
        result: what the function returns, its objects taken apart.
        objects: structure of the objects behind the call.
        sources: for each of their leaves which array of the arguments it is, or None for the next of the new ones.
    """

    def __init__(self, computed: list[Any], result: Any, objects: Any, sources: tuple[int | None, ...]):
        self.computed = computed
        self.result = result
        self.objects = objects
        self.sources = sources

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Takes the object apart for JAX."""
        return (self.computed, self.result), (self.objects, self.sources)

    @classmethod
    def tree_unflatten(cls, static: tuple[Any, Any], children: tuple[Any, Any]) -> Outcome:
        """Takes the object apart for JAX."""
        return cls(*children, *static)

    def put_back(self, given: list[Any], tag: str | None) -> Any:
        """The function's result, after the objects of its caller have got their arrays."""
        computed = iter(self.computed)
        leaves = [next(computed) if source is None else given[source] for source in self.sources]
        return _put_together((jax.tree.unflatten(self.objects, leaves), self.result), tag, inner=False)[1]


@jax.tree_util.register_pytree_node_class
class _Apart:
    """An object taken apart: its arrays, and the rest, hashable. A second one for the same object only refers to the first."""

    def __init__(self, definition: Any, values: list[Any]):
        self.definition = definition
        self.values = values

    def tree_flatten(self) -> tuple[list[Any], Any]:
        return self.values, self.definition

    @classmethod
    def tree_unflatten(cls, definition: Any, values: tuple[Any, ...]) -> _Apart:
        return cls(definition, list(values))


def _nnx() -> Any:
    """The module, if somebody else has imported it: before that there is no object of it."""
    return sys.modules.get("flax.nnx")


def _is_kind_of_object(kind: type) -> bool:
    return issubclass(kind, (_nnx().Pytree, _nnx().Variable))


def _holds_objects(tree: Any, known: dict[Any, bool]) -> bool:
    try:
        found = known.get(tree)
        if found is None:
            found = known[tree] = _finds_objects(tree)
        return found
    except TypeError:  # what the tree says of a node cannot be hashed
        return True


def _finds_objects(tree: Any) -> bool:
    node = tree.node_data()
    if node is None or issubclass(node[0], _nnx().State):
        return False
    return _is_kind_of_object(node[0]) or any(map(_finds_objects, tree.children()))


def _is_leaf(item: Any) -> bool:
    return isinstance(item, _Apart | _nnx().State) or is_object(item)


def _leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=_is_leaf)


def _check_trace(tree: Any) -> None:
    """Refuses objects that cannot change here. nnx would refuse them halfway and leave them in pieces."""
    for item in filter(is_object, _leaves(tree)):
        for _, part in _nnx().iter_graph(item):
            if isinstance(part, _nnx().Variable):
                part.set_raw_value(part.get_raw_value())


def _taken_apart(tree: Any, tag: str | None = None) -> Any:
    with _nnx().split_context(tag) as context:

        def split(item: Any) -> Any:
            return _Apart(*context.flatten(item, with_paths=False)) if is_object(item) else item

        return jax.tree.map(split, tree, is_leaf=_is_leaf)


def _put_together(tree: Any, tag: str | None, *, inner: bool) -> Any:
    with _nnx().merge_context(tag, inner) as context:

        def merge(item: Any) -> Any:
            return context.unflatten(item.definition, item.values) if isinstance(item, _Apart) else item

        return jax.tree.map(merge, tree, is_leaf=_is_leaf)


def _arrays(tree: Any) -> list[Any]:
    """Arrays of all objects that are taken apart; a prepared array is one."""
    taken = (item.values for item in _leaves(tree) if isinstance(item, _Apart))
    return [leaf for values in taken for leaf in jax.tree.leaves(values, is_leaf=is_prepared)]


def _same(before: tuple[list[Any], Any], after: tuple[list[Any], Any]) -> bool:
    return before[1] == after[1] and all(map(operator.is_, before[0], after[0]))

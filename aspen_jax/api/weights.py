"""Prepared weights: arrays stored once in the order in which products and convolutions read them.

A prepared array is a pytree node around the stored array. Where a trace meets it, it becomes a transpose of that array, which the
compiler turns into a view, or what takes it out of panels, which the compiler leaves out where a product reads it. So every
transformation of JAX means what it means without us, any function may read it, and nothing is held twice.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend import core

from aspen_jax import forks
from aspen_jax.api import arguments
from aspen_jax.errors import InputError
from aspen_jax.lowering.compile import Options, compile_jaxpr
from aspen_jax.ops.matmul import from_panels, to_panels
from aspen_jax.passes.storage import Arrangement


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, eq=False)
class PreparedArray:
    """An array whose dimensions are stored in another order.

    Attributes:
        stored: the array with its dimensions in that order.
        order: the permutation that gave it.
        in_panels: where that was then stored in panels (ops/matmul.py), the shape that it had before; else empty.
    """

    stored: Any
    order: tuple[int, ...]
    in_panels: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array that was prepared."""
        shape = self.in_panels or self.stored.shape
        return tuple(shape[self.order.index(axis)] for axis in range(len(self.order)))

    @property
    def dtype(self) -> Any:
        """The dtype of its elements."""
        return self.stored.dtype

    def __jax_array__(self) -> jax.Array:
        """The array that was prepared."""
        stored = from_panels(self.stored, self.in_panels) if self.in_panels else self.stored
        return jnp.transpose(stored, [self.order.index(axis) for axis in range(len(self.order))])

    def tree_flatten(self) -> tuple[tuple[Any], tuple[tuple[int, ...], tuple[int, ...]]]:
        """Takes the object apart: the stored array is traced, how it is stored is part of the structure."""
        return (self.stored,), (self.order, self.in_panels)

    @classmethod
    def tree_unflatten(cls, how: tuple[tuple[int, ...], tuple[int, ...]], children: tuple[Any]) -> PreparedArray:
        """Puts the object together for JAX."""
        return cls(*children, *how)


def is_prepared(leaf: Any) -> bool:
    """Whether a leaf is a prepared array: `is_leaf` of `jax.tree.map`."""
    return isinstance(leaf, PreparedArray)


def restore(tree: Any) -> Any:
    """The tree with arrays in place of prepared ones."""
    if not any(map(is_prepared, jax.tree.leaves(tree, is_leaf=is_prepared))):
        return tree
    return jax.tree.map(lambda leaf: leaf.__jax_array__() if is_prepared(leaf) else leaf, tree, is_leaf=is_prepared)


# id of an array -> the array, weakly, and what was prepared from it. It goes when the array goes.
_prepared: dict[int, tuple[weakref.ref[Any], dict[Arrangement, PreparedArray]]] = {}
_lock = forks.Lock()


def prepare(array: jax.Array, order: Sequence[int], summed: int = 0) -> PreparedArray:
    """The array arranged so (storage.Arrangement); the same object for the same array, as long as that lives."""
    key, how = id(array), Arrangement(tuple(order), summed)
    with _lock:
        entry = _prepared.get(key)
        if entry is not None and how in entry[1]:
            return entry[1][how]
    stored, shape = jnp.transpose(array, how.order), ()
    if summed:
        shape = stored.shape
        stored = to_panels(stored.reshape(math.prod(shape[:summed]), -1), jnp)
    prepared = PreparedArray(jax.block_until_ready(stored), how.order, shape)
    with _lock:
        if key not in _prepared:
            _prepared[key] = (weakref.ref(array, lambda _: _prepared.pop(key, None)), {})
        return _prepared[key][1].setdefault(how, prepared)


def best_arrangements(jaxpr: core.Jaxpr) -> dict[int, Arrangement]:
    """The position of each input of a jaxpr that is better stored otherwise, and how."""
    from aspen_jax.passes import panels, storage
    from aspen_jax.primitive.primitive import aspen_call_p

    position = {var: index for index, var in enumerate(jaxpr.invars)}
    found: dict[int, Arrangement] = {}
    for equation in jaxpr.eqns:
        if equation.primitive is not aspen_call_p:
            continue
        choices = equation.params["choices"]
        options = Options(choices._replace(strict=False), chooses=not choices.strict)
        compiled = compile_jaxpr(equation.params["call_jaxpr"], options)
        inputs = dict(zip(compiled.trace.inputs, equation.invars, strict=True))
        for part in compiled.parts:
            orders = storage.best_orders(part.program, inputs.keys())
            arrangements = {value: Arrangement(order) for value, order in orders.items()}
            for value, how in (arrangements | panels.arrangements(part.program, inputs.keys())).items():
                atom = inputs[value]
                if atom in position:
                    found.setdefault(position[atom], how)
    return found


class _Call:
    """A call, for the next one with the very same weights. It holds them weakly; when one goes, it forgets what it prepared."""

    def __init__(self, tree: Any, leaves: Sequence[Any], marked: Sequence[int], prepared: dict[int, PreparedArray]):
        self._tree = tree
        self._marked = operator.itemgetter(*marked) if len(marked) > 1 else lambda leaves: (leaves[marked[0]],)
        self._weights = [weakref.ref(leaf, self._forget) for leaf in self._marked(leaves)]
        self._others = [index for index in range(len(leaves)) if index not in set(marked)]
        self._shapes = _shapes([leaves[index] for index in self._others])
        self._prepared: dict[int, PreparedArray] | None = prepared

    def _forget(self, _: Any) -> None:
        self._prepared = None

    def prepared(self, tree: Any, leaves: Sequence[Any]) -> dict[int, PreparedArray] | None:
        """What stands for which leaf of a call; None where the call has other weights, or other shapes."""
        prepared = self._prepared
        if prepared is None or tree != self._tree or self._shapes != _shapes([leaves[index] for index in self._others]):
            return None
        is_same = all(map(operator.is_, self._marked(leaves), [weight() for weight in self._weights]))
        return prepared if is_same and not any(leaves[index].is_deleted() for index in prepared) else None


class Layouts:
    """Which of a function's weights are stored in which order, for each structure and shapes of its arguments.

    Args:
        fun: the function.
        name: what errors call it.
        marks: positions and names of the arguments that are weights.
    """

    def __init__(self, fun: Callable[..., Any], name: str, marks: tuple[int | str, ...]):
        self._fun = fun
        self._name = name
        self._marks = marks
        self._marked: dict[Any, tuple[int, ...]] = {}
        self._arrangements: dict[Any, dict[int, Arrangement]] = {}
        self._of_weights: dict[Any, dict[int, Arrangement]] = {}
        self._last: _Call | None = None

    def prepared(self, trace: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """(args, kwargs) with the weights prepared that are arrays; tracers are left as they are.

        Args:
            trace: from (args, kwargs) to the jaxpr of the call and, for each of its inputs, the number of the leaf.
            args: positional arguments.
            kwargs: keyword arguments.
        """
        leaves, tree = jax.tree.flatten((args, kwargs))
        known = None if self._last is None else self._last.prepared(tree, leaves)
        if known is not None:
            return _with(leaves, tree, known) if known else (args, kwargs)
        if tree not in self._marked:
            self._marked[tree] = tuple(self._positions(args, kwargs))
        concrete = [index for index in self._marked[tree] if _is_concrete(leaves[index])]
        if not concrete:
            return args, kwargs
        for index in concrete:
            if leaves[index].is_deleted():
                raise arguments.refuse_deleted(self._fun, self._name, args, kwargs, index)
        key = tree, _shapes(leaves)
        if key not in self._arrangements:
            jaxpr, positions = trace(args, kwargs)
            found = {positions[index]: how for index, how in best_arrangements(jaxpr).items()}
            self._arrangements[key] = {index: how for index, how in found.items() if index in self._marked[tree]}
            weights = self._weights(args, kwargs)
            if weights is not None:
                first = self._marked[tree]
                by_weight = {first.index(index): how for index, how in self._arrangements[key].items()}
                of_weights, of_tree = jax.tree.flatten(weights)
                self._of_weights[of_tree, _shapes(of_weights)] = by_weight
        found = {
            index: prepare(leaves[index], *how) for index, how in self._arrangements[key].items() if _is_concrete(leaves[index])
        }
        if len(concrete) == len(self._marked[tree]):
            self._last = _Call(tree, leaves, concrete, found)
        return _with(leaves, tree, found)

    def prepare(self, trace: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The weights of a call, prepared; one tree, or a tuple where several arguments are marked.

        Raises:
            InputError: no argument is marked, or only weights are given and nothing is known yet about weights like these.
        """
        if not self._marks:
            raise InputError(f"{self._name} has no weights to prepare; say which arguments are, as in aspen(f, weights=0)")
        if len(args) == len(self._marks) and not kwargs and not self._is_whole_call(args):
            leaves, tree = jax.tree.flatten(args)
            arrangements = self._of_weights.get((tree, _shapes(leaves)))
            if arrangements is None:
                raise InputError(
                    f"{self._name}.prepare: it was not called yet with weights of this structure and these shapes; pass all "
                    "arguments of a call (jax.ShapeDtypeStruct may stand for those that are no weights)"
                )
            for index, how in arrangements.items():
                leaves[index] = prepare(leaves[index], *how) if _is_concrete(leaves[index]) else leaves[index]
            weights = jax.tree.unflatten(tree, leaves)
        else:
            args, kwargs = self.prepared(trace, args, kwargs)
            weights = self._weights(args, kwargs)
            if weights is None:
                raise InputError(
                    f"{self._name}.prepare: an argument that is marked as weights is missing; pass all of {self._marks}"
                )
        return weights[0] if len(weights) == 1 else weights

    def _is_whole_call(self, args: tuple[Any, ...]) -> bool:
        try:
            inspect.signature(self._fun).bind(*args)
        except TypeError:
            return False
        except ValueError:  # it tells nothing about itself
            return True
        return True

    def _names(self) -> list[str]:
        try:
            parameters = inspect.signature(self._fun).parameters.values()
        except (TypeError, ValueError):
            return []
        return [item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]

    def _is_marked(self, place: int | str) -> bool:
        """Whether the argument handed in at this position or under this name is marked."""
        names = self._names()
        if isinstance(place, str):
            also = names.index(place) if place in names else None
            return place in self._marks or (also is not None and (also in self._marks or also - len(names) in self._marks))
        name = names[place] if place < len(names) else None
        return place in self._marks or (name is not None and (name in self._marks or place - len(names) in self._marks))

    def _positions(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[int]:
        marked = {item for item in (*range(len(args)), *kwargs) if self._is_marked(item)}
        for index, (path, _) in enumerate(jax.tree_util.tree_flatten_with_path((args, kwargs))[0]):
            if (path[1].key if path[0].idx else path[1].idx) in marked:
                yield index

    def _weights(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """The marked arguments in the order of the call; None if any is not given."""
        found = [item for index, item in enumerate(args) if self._is_marked(index)]
        found += [kwargs[name] for name in sorted(kwargs) if self._is_marked(name)]
        return tuple(found) if len(found) == len(self._marks) else None


def _with(leaves: list[Any], tree: Any, others: dict[int, PreparedArray]) -> Any:
    for index, other in others.items():
        leaves[index] = other
    return jax.tree.unflatten(tree, leaves)


def _is_concrete(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)


def _shapes(leaves: Sequence[Any]) -> tuple[Any, ...]:
    return tuple((leaf.shape, leaf.dtype) if hasattr(leaf, "shape") else type(leaf) for leaf in leaves)

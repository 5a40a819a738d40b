"""Weights that later parts of a cut function hold: the first part takes no others, or its result would be that of no model."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import jax
import numpy as np
from jax.core import Tracer

from aspen_jax.api.function import AspenFunction
from aspen_jax.api.weights import is_prepared
from aspen_jax.errors import InputError


@dataclasses.dataclass(frozen=True, eq=False)
class Held:
    """One array of the weights that later parts hold.

    Attributes:
        name: as in "params.dense.kernel".
        given: the array that the function was cut with.
        value: its contents, which nobody changes.
        dtype: the dtype that the function reads it in.
    """

    name: str
    given: Any
    value: Any
    dtype: Any


class Head(AspenFunction[..., Any]):
    """The first part of a function whose later parts hold weights: it takes those of `cut` alone.

    An array of JAX's is compared once. Arrays of NumPy may change, so they are compared at each call.
    """

    _held: Mapping[int, Held]
    _count: int

    def holding(self, held: Mapping[int, Held], count: int) -> Head:
        """This part, which from now on compares weights.

        Args:
            held: by the place of the array among the leaves of the arguments.
            count: how many leaves the arguments have.
        """
        self._held, self._count = held, count
        self._known: dict[tuple[int, int], weakref.ref[Any]] = {}  # by id and place: arrays that are known to be right
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compare the weights, then call the function."""
        self._check(args, kwargs)
        return super().__call__(*args, **kwargs)

    def graph_inputs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Compare the weights, then give what `AspenFunction.graph_inputs` gives."""
        self._check(args, kwargs)
        return super().graph_inputs(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise an error: what is compiled takes any weights."""
        self._refuse_traced(next(iter(self._held.values())))

    def lower(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise the error of `trace`."""
        self._refuse_traced(next(iter(self._held.values())))

    def stream(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise the error of `trace`."""
        self._refuse_traced(next(iter(self._held.values())))

    def _check(self, args: Any, kwargs: Any) -> None:
        leaves = jax.tree.leaves((args, kwargs), is_leaf=is_prepared)
        if len(leaves) != self._count:
            return  # the structure is another one, which is refused with its own words
        for place, held in self._held.items():
            leaf = leaves[place]
            given = leaf.stored if is_prepared(leaf) else leaf
            if isinstance(given, Tracer):
                self._refuse_traced(held)
            if isinstance(given, jax.Array) and (given is held.given or self._is_known(given, place)):
                continue
            if not _is_same(leaf, held):
                raise InputError(
                    f"{self.__name__}: the weights {held.name} are not those that the function was cut with, which a later part "
                    "holds; pass those, or cut the function anew with these"
                )
            if isinstance(given, jax.Array):
                self._remember(given, place)

    def _is_known(self, array: jax.Array, place: int) -> bool:
        known = self._known.get((id(array), place))
        return known is not None and known() is array

    def _remember(self, array: jax.Array, place: int) -> None:
        key = id(array), place
        self._known[key] = weakref.ref(array, lambda _: self._known.pop(key, None))

    def _refuse_traced(self, held: Held) -> NoReturn:
        raise InputError(
            f"{self.__name__}: the weights {held.name} are traced here, and a later part holds those that the function was cut "
            f"with; close over them, as in jax.jit(lambda x: {self.__name__}(params, x))"
        )


def head_of(make: Callable[..., Any], held: Mapping[int, Held], count: int) -> AspenFunction[..., Any]:
    """The first part, with weights to compare where later parts hold some.

    Args:
        make: makes the part of the given type.
        held: as `Head.holding` takes it.
        count: likewise.
    """
    return make(Head).holding(held, count) if held else make(AspenFunction)


def _is_same(leaf: Any, held: Held) -> bool:
    """Whether the bits are the same. What is wrong in another way counts as the same, and is refused with its own words."""
    array = leaf.stored if is_prepared(leaf) else leaf
    if isinstance(array, jax.ShapeDtypeStruct) or (isinstance(array, jax.Array) and array.is_deleted()):
        return True
    ours, theirs = _as_bytes(held.value, held.dtype), _as_bytes(leaf.__jax_array__() if is_prepared(leaf) else leaf, held.dtype)
    return ours.shape != theirs.shape or np.array_equal(ours, theirs)


def _as_bytes(value: Any, dtype: Any) -> np.ndarray:
    """The bytes of an array, [..., bytes of an element]."""
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
        dtype = value.dtype
    array = np.ascontiguousarray(np.asarray(value, dtype))
    return array.reshape(*np.shape(value), 1).view(np.uint8)

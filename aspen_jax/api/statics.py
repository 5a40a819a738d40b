"""Values that are static: part of what a function is compiled for, compared at each call.

A hash by identity says nothing of what an object holds. So a value is static only if its type is known not to change, or says
itself when two of its values are equal.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import logging
import operator
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Primitive

# Types that hash by identity and whose values do not change, or are taken for what they were, as closures are by jax.jit.
_UNCHANGING: tuple[type, ...] = (
    type,
    types.FunctionType,
    types.ModuleType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.EllipsisType,
    types.NotImplementedType,
    enum.Enum,
    logging.Logger,
    operator.itemgetter,
    operator.attrgetter,
    operator.methodcaller,
    type(functools.lru_cache(abs)),
    np.ufunc,
    type(jax.jit(abs)),
    jax.custom_jvp,
    jax.custom_vjp,
    jax.custom_batching.custom_vmap,
    jax.stages.Compiled,
    jax.Device,
    jax.sharding.Mesh,
    jax.sharding.AbstractMesh,
    type(jax.sharding.PartitionSpec.UNCONSTRAINED),
    Jaxpr,
    ClosedJaxpr,
    Primitive,
)


@dataclasses.dataclass(frozen=True)
class Holder:
    """A type whose values are what they hold, such as a bound method.

    Attributes:
        parts: what a value holds: functions, objects, arrays, tuples or dictionaries of those.
        make: a value from such parts.
    """

    parts: Callable[[Any], tuple[Any, ...]]
    make: Callable[..., Any]


HOLDERS: dict[type, Holder] = {
    functools.partial: Holder(
        lambda value: (value.func, value.args, value.keywords),
        lambda func, args, keywords: functools.partial(func, *args, **keywords),
    ),
    types.MethodType: Holder(lambda value: (value.__func__, value.__self__), types.MethodType),
    # In JAX 0.10 equal ones hash by identity. What pickle asks for is all that they hold, in every version.
    jax.P: Holder(lambda value: value.__getnewargs_ex__(), lambda axes, others: jax.P(*axes, **others)),
}

# What is known of a type: its values never change; they say themselves what equals them; or neither, and False.
_known: weakref.WeakKeyDictionary[type, bool | None] = weakref.WeakKeyDictionary()


def never_changes(kind: type) -> bool:
    """Whether values of a type are known not to change, although they may hash by identity."""
    return kind is object or issubclass(kind, _UNCHANGING)


def is_static(value: Any) -> bool:
    """Whether a value can be part of what a function is compiled for."""
    kind = type(value)
    if kind in HOLDERS:
        return all(map(is_static, _flat(HOLDERS[kind].parts(value))))
    if kind not in _known:
        _known[kind] = True if never_changes(kind) else (None if hashes_itself(kind) else False)
    known = _known[kind]
    if known is not None:
        return known
    try:
        hash(value)
    except TypeError:
        return False
    return all(map(is_static, _held(value)))


def hashes_itself(kind: type) -> bool:
    """Whether a type defines a hash of its own."""
    return kind.__hash__ is not None and kind.__hash__ is not object.__hash__


def _held(value: Any) -> Iterable[Any]:
    """What the hash of a value is made of, where that is known."""
    if isinstance(value, frozenset):
        return value
    if isinstance(value, types.BuiltinMethodType | types.MethodWrapperType):
        return () if value.__self__ is None else (value.__self__,)
    if isinstance(value, weakref.ref):
        return (value(),)
    if dataclasses.is_dataclass(value) and _has_generated_hash(type(value)):
        hashed = (field for field in dataclasses.fields(value) if (field.compare if field.hash is None else field.hash))
        return _flat(getattr(value, field.name) for field in hashed)
    return ()


def _has_generated_hash(kind: type) -> bool:
    return getattr(kind.__hash__, "__code__", None) is not None and kind.__hash__.__code__.co_filename == "<string>"


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _flat(value)
        elif isinstance(value, dict):
            yield from _flat(value.values())
        else:
            yield value

"""Cuts a function between any two of its operations: each part is a decorated function, run where you say.

The function's jaxpr is laid out as one flat list of equations, with its calls inlined. Cut `k` stands before equation `k`. What
crosses it is every value that stands before it and is read behind it (section 3.1 of the DynO paper).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.core import ShapedArray, Tracer
from jax.extend import core
from jax.extend.core.primitives import convert_element_type_p

from aspen_jax.api.decorator import decorated_as, flat_call
from aspen_jax.api.flat import FlatCall, check_type
from aspen_jax.api.function import AspenFunction
from aspen_jax.errors import InputError
from aspen_jax.split.equations import FlatJaxpr, closed_over, flatten, with_scans_split
from aspen_jax.split.same_weights import Held, head_of


@dataclasses.dataclass(frozen=True)
class ScanStep:
    """A cut inside of a `jax.lax.scan`: the first part runs its first steps, the next one goes on with the carry.

    Attributes:
        equation: the number of the scan in the list of equations.
        step: how many steps come before the cut, from 0 to the length of the scan.
    """

    equation: int
    step: int


Cut = int | ScanStep


@dataclasses.dataclass(frozen=True)
class Crossing:
    """A value that crosses a cut.

    Attributes:
        name: of an argument as in "params.dense.kernel", else the named scope and primitive that gave it.
        shape: its shape. A typed PRNG key crosses as its key data.
        dtype: its dtype.
        nbytes: its size in bytes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    nbytes: int


def num_cuts(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """How many cuts a function has: one more than equations.

    Operations that a custom derivative rule stands for count as one, so that both halves keep the rule.

    Args:
        fun: a function, decorated by `aspen` or not.
        *args: as it takes them; `jax.ShapeDtypeStruct` may stand for an array.
        **kwargs: likewise.
    """
    return len(flatten(flat_call(fun, args, kwargs)).equations) + 1


def cut(fun: Callable[..., Any], k: Cut | Sequence[Cut], *args: Any, **kwargs: Any) -> tuple[AspenFunction[..., Any], ...]:
    """Cuts a function in two, or in more parts where several cuts are given.

    The first part takes the arguments of `fun`. Each part but the last returns a tuple of arrays, in the order of `crossing`.
    Each part but the first takes those arrays as its arguments. The last part returns what `fun` returns. A value that skips a
    part passes through it. Another process that cuts the same function in the same way gets the same parts.

    Constants do not cross, nor do arguments that `fun` marks as weights: each part holds those that it reads. The first part
    takes weights as arguments, as `fun` does, and refuses others than those that a later part holds. A side effect, such as
    `jax.debug.print`, happens in the part where it stands.
    Donation is up to the caller, as in `jax.jit(tail, donate_argnums=0)`.

    Args:
        fun: a function, decorated by `aspen` or not. The parts are decorated alike.
        k: a cut from 0 to `num_cuts` - 1, a `ScanStep`, or a sequence of those in rising order. Cut 0 leaves everything to the
            second part, the last cut leaves nothing to it.
        *args: as `fun` takes them. `jax.ShapeDtypeStruct` may stand for an array that is no weight.
        **kwargs: likewise.

    Returns:
        The parts, one more than cuts, each an `AspenFunction`.

    Raises:
        InputError: there is no such cut; a value that crosses is no array; weights are needed behind a cut and no arrays were
            given. A part raises it for arguments of another structure, shape or dtype than the function was cut for. The first
            part raises it for weights that a later part holds and that are others here, or are traced.

    Example:
        >>> head, tail = cut(f, 3, x)
        >>> tail(*head(x))  # as f(x)
    """
    call = flat_call(fun, args, kwargs)
    return cut_call(call, flatten(call), k)


def cut_call(call: FlatCall, jaxpr: FlatJaxpr, k: Cut | Sequence[Cut]) -> tuple[AspenFunction[..., Any], ...]:
    """Cuts a function that was traced already; see `cut`.

    Args:
        call: the call.
        jaxpr: its equations, as `flatten` gives them.
        k: as `cut` takes it.
    """
    cuts = list(k) if isinstance(k, Sequence) else [k]
    jaxpr, positions = _positions(jaxpr, cuts, call.function.__name__)
    ends = [0, *positions, len(jaxpr.equations)]
    live = jaxpr.live(positions)
    for variables in live:
        _describe(jaxpr, variables)
    names = [call.function.__name__ + suffix for suffix in _suffixes(len(ends) - 1)]
    held: set[core.Var] = set()
    parts = []
    for number, name in reversed(list(enumerate(names))):  # the first one last: it knows what the others hold
        taken = None if number == 0 else live[number - 1]
        given = None if number == len(positions) else live[number]
        parts.append(_part(call, jaxpr, name, jaxpr.equations[ends[number] : ends[number + 1]], taken, given, held))
    return tuple(reversed(parts))


def crossing(fun: Callable[..., Any], k: Cut, *args: Any, **kwargs: Any) -> tuple[Crossing, ...]:
    """What crosses a cut, in the order in which the parts of `cut` hand it on. Nothing is run.

    Args:
        fun: as `cut` takes it.
        k: one cut.
        *args: as `fun` takes them; `jax.ShapeDtypeStruct` may stand for an array.
        **kwargs: likewise.

    Raises:
        InputError: there is no such cut, or a value that crosses is no array.
    """
    call = flat_call(fun, args, kwargs)
    jaxpr, positions = _positions(flatten(call), [k], call.function.__name__)
    (variables,) = jaxpr.live(positions)
    return _describe(jaxpr, variables)


def crossings(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[tuple[Crossing, ...], ...]:
    """What crosses each cut, by one walk over the function; see `crossing`."""
    return crossings_of(flatten(flat_call(fun, args, kwargs)))


def crossings_of(jaxpr: FlatJaxpr) -> tuple[tuple[Crossing, ...], ...]:
    """What crosses each cut of a function that was traced already."""
    return tuple(_describe(jaxpr, variables) for variables in jaxpr.live(range(len(jaxpr.equations) + 1)))


def _suffixes(count: int) -> list[str]:
    return ["_head", "_tail"] if count == 2 else [f"_part{number}" for number in range(count)]


def _positions(jaxpr: FlatJaxpr, cuts: Sequence[Cut], name: str) -> tuple[FlatJaxpr, list[int]]:
    """Where cuts stand in the list of equations, with the scans taken apart that they go through."""
    places = [_checked(jaxpr, item, name) for item in cuts]
    if not places or any(left >= right for left, right in itertools.pairwise(places)):
        raise InputError(f"the cuts of {name} are {list(cuts)!r}; give at least one, each behind the one before")
    return with_scans_split(jaxpr, places)


def _checked(jaxpr: FlatJaxpr, item: Any, name: str) -> tuple[int, int]:
    """A cut as the number of an equation and how many of its steps come before the cut."""
    number = item.equation if isinstance(item, ScanStep) else item
    last = len(jaxpr.equations)
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number <= last:
        raise InputError(f"{name} has no cut {item!r}; take an integer from 0 to {last}, or a ScanStep")
    if not isinstance(item, ScanStep):
        return int(number), 0
    scans = [index for index, equation in enumerate(jaxpr.equations) if equation.primitive.name == "scan"]
    if number not in scans:
        raise InputError(f"equation {number} of {name} is no scan; its scans are {scans or 'none'}")
    length = jaxpr.equations[number].params["length"]
    if isinstance(item.step, bool) or not isinstance(item.step, int | np.integer) or not 0 <= item.step <= length:
        raise InputError(
            f"the scan at equation {number} of {name} has {length} steps; take from 0 to {length}, not {item.step!r}"
        )
    return (int(number) + 1, 0) if item.step == length else (int(number), int(item.step))


def _describe(jaxpr: FlatJaxpr, variables: Sequence[core.Var]) -> tuple[Crossing, ...]:
    return tuple(_described(jaxpr.names[var], var.aval) for var in variables)


def _described(name: str, aval: Any) -> Crossing:
    """What a value is when it crosses.

    Raises:
        InputError: it has no bytes to send.
    """
    if not isinstance(aval, ShapedArray) or aval.dtype == jax.dtypes.float0:
        raise InputError(f"{name}, of type {aval}, cannot cross a cut, as it is no array of numbers; cut where it is not needed")
    if not all(isinstance(size, int) for size in aval.shape):
        raise InputError(f"{name} has a symbolic shape, {aval.str_short()}; cut the function for shapes of numbers")
    sent = _sent_as(aval)
    return Crossing(name, tuple(sent.shape), np.dtype(sent.dtype), math.prod(sent.shape) * np.dtype(sent.dtype).itemsize)


def _is_key(aval: Any) -> bool:
    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)


def _sent_as(aval: Any) -> Any:
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype)) if _is_key(aval) else aval


def _send(value: Any) -> Any:
    return jax.random.key_data(value) if _is_key(jax.typeof(value)) else value


def _receive(value: Any, aval: Any) -> Any:
    """The value as its readers know it: a typed key, or an array of the weak type that bytes cannot tell."""
    if _is_key(aval):
        found = []
        jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), jax.ShapeDtypeStruct(aval.shape, aval.dtype))
        return jax.random.wrap_key_data(value, impl=found[0])
    if aval.weak_type and not jax.typeof(value).weak_type:
        return convert_element_type_p.bind(value, new_dtype=aval.dtype, weak_type=True, sharding=None)
    return value


def _part(
    call: FlatCall,
    jaxpr: FlatJaxpr,
    name: str,
    equations: Sequence[Any],
    taken: Sequence[core.Var] | None,
    given: Sequence[core.Var] | None,
    weights_held: set[core.Var],
) -> AspenFunction[..., Any]:
    """A part as a decorated function.

    Args:
        call: the call of the whole function.
        jaxpr: its equations.
        name: of the part.
        equations: those that are the part's own.
        taken: the values that it takes; None for the arguments of the whole function.
        given: the values that it hands on; None for the results of the whole function.
        weights_held: weights that later parts hold. A part that holds some adds them.
    """
    arguments = jaxpr.inputs if taken is None else tuple(taken)
    outputs = jaxpr.outputs if given is None else tuple(given)
    held = dict(jaxpr.constants)
    if taken is not None:
        held |= jaxpr.weights
    inner = closed_over(equations, arguments, outputs, held)
    for var, value in zip(inner.jaxpr.constvars, inner.consts, strict=True):
        if isinstance(value, Tracer | jax.ShapeDtypeStruct):
            raise InputError(f"{name} needs the weights {jaxpr.names[var]}; give arrays for the weights, not shapes or tracers")
    weights_held.update(var for var in inner.jaxpr.constvars if var in jaxpr.weights)
    run = core.jaxpr_as_fun(inner)

    def results(values: Sequence[Any]) -> Any:
        found = run(*values)
        return call.returned(found) if given is None else tuple(map(_send, found))

    if taken is None:
        static = {index for index, _ in call.structure.static}
        places = [index for index in range(call.structure.tree.num_leaves) if index not in static]
        avals = cast("Sequence[Any]", call.jaxpr.in_avals)
        compared = {
            place: Held(jaxpr.names[var], leaf, jaxpr.weights[var], aval.dtype)
            for place, var, leaf, aval in zip(places, jaxpr.inputs, call.leaves, avals, strict=True)
            if var in weights_held
        }
        part = functools.partial(decorated_as, call, lambda *args, **kwargs: results(call.inputs(args, kwargs)), name)
        return head_of(lambda kind: part(takes_arguments=True, kind=kind), compared, call.structure.tree.num_leaves)
    described = _describe(jaxpr, taken)

    def later(*values: Any) -> Any:
        if len(values) != len(described):
            raise InputError(f"{name} takes {len(described)} arrays, those that the part before it returns, not {len(values)}")
        for value, var, what in zip(values, taken, described, strict=True):
            check_type(name, what.name, value, _sent_as(var.aval))
        return results([_receive(value, var.aval) for value, var in zip(values, taken, strict=True)])

    return decorated_as(call, later, name, takes_arguments=False)

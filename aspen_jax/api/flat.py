"""A call of a decorated function as a jaxpr over flat arrays, for rooms that take functions apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.core import Tracer
from jax.extend import core

from aspen_jax.api import arguments, nnx_state, results
from aspen_jax.api.weights import restore
from aspen_jax.errors import InputError

if TYPE_CHECKING:
    from aspen_jax.api.function import AspenFunction


@dataclasses.dataclass(frozen=True, eq=False)
class FlatCall:
    """A call of a function, traced.

    Attributes:
        function: the function, decorated.
        structure: what of the arguments is not traced.
        jaxpr: the call.
        leaves: what was given for each input of the jaxpr: an array, a number or a `jax.ShapeDtypeStruct`.
        names: of the inputs, as in "params.dense.kernel".
        weights: which inputs belong to arguments marked as weights.
        result: a `jax.ShapeDtypeStruct` for each array of the result, in the result's tree.
    """

    function: AspenFunction[..., Any]
    structure: arguments.Structure
    jaxpr: core.ClosedJaxpr
    leaves: tuple[Any, ...]
    names: tuple[str, ...]
    weights: frozenset[int]
    result: Any

    @classmethod
    def of(cls, function: AspenFunction[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> FlatCall:
        """Traces a call.

        Args:
            function: the function, decorated.
            args: as it takes them; `jax.ShapeDtypeStruct` may stand for an array.
            kwargs: likewise.

        Raises:
            InputError: an argument or the result holds an object of nnx, or the function closes over a traced value.
        """
        args, kwargs = restore(function._seen(args, kwargs))
        changing = list(filter(nnx_state.is_object, jax.tree.leaves((args, kwargs), is_leaf=nnx_state.is_object)))

        def traced(structure: arguments.Structure, leaves: list[Any]) -> Any:
            return structure, leaves, function._jitted.jit.trace(structure, leaves)

        name = function.__name__
        if changing:
            raise InputError(
                f"{name}: an argument holds a {type(changing[0]).__name__} of flax.nnx, which may change; close over it, or "
                "take it apart by nnx.split and pass its state"
            )
        structure, leaves, trace = function._jitted.on_arguments(traced, args, kwargs, shapes_traced=True)
        if isinstance(trace.out_info, nnx_state.Outcome):
            raise InputError(f"{name} returns objects of flax.nnx; take them apart by nnx.split and return their state")
        # Such a value is a constant of the jaxpr, or an input before those of the leaves.
        if len(trace.jaxpr.in_avals) > len(leaves) or any(isinstance(const, Tracer) for const in trace.jaxpr.consts):
            raise InputError(f"{name} closes over a value that is being traced; make it an argument")
        static = {index for index, _ in structure.static}
        names = arguments.names(function.__wrapped__, args, kwargs)
        kept = [index for index in range(len(names)) if index not in static]
        marked = set(function._layouts._positions(args, kwargs))
        return cls(
            function=function,
            structure=structure,
            jaxpr=trace.jaxpr,
            leaves=tuple(leaves),
            names=tuple(names[index] for index in kept),
            weights=frozenset(position for position, index in enumerate(kept) if index in marked),
            result=trace.out_info,
        )

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The inputs of the jaxpr from arguments of another call.

        Raises:
            InputError: the structure, a static argument, a shape or a dtype is another one than in the call that was traced.
        """
        name = self.function.__name__
        leaves, tree = jax.tree.flatten(restore(self.function._seen(args, kwargs)))
        if tree != self.structure.tree:
            raise InputError(f"{name} was made for arguments of the structure {self.structure.tree}, not {tree}; make it anew")
        for index, value in reversed(self.structure.static):
            given = leaves.pop(index)
            if not (given is value or given == value):
                raise InputError(f"{name} was made for the static argument {value!r}, not {given!r}; make it anew")
        for leaf, aval, where in zip(leaves, self.jaxpr.in_avals, self.names, strict=True):
            check_type(name, where, leaf, aval)
        return leaves

    def returned(self, arrays: Sequence[Any]) -> Any:
        """What the function returns, from the outputs of the jaxpr."""
        return results.whole(jax.tree.unflatten(jax.tree.structure(self.result), arrays))

    def outputs(self, returned: Any) -> list[Any]:
        """The outputs of the jaxpr, from what the function returned."""
        return results.arrays(returned, self.result)


def check_type(name: str, where: str, given: Any, wanted: Any) -> None:
    """Refuses what has another shape or dtype than an abstract value."""
    found = jax.typeof(given)
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        raise InputError(f"{name} was made for {wanted.str_short()} as {where}, not {found.str_short()}; make it anew for that")

"""What becomes of a call of a decorated function: its graph of tiles, and what is said of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aspen_jax.api import arguments, nnx_state, results
from aspen_jax.errors import UnsupportedError
from aspen_jax.ir.leaf_names import leaf_names
from aspen_jax.lowering.compile import Compiled, Options, compile_jaxpr, whole_graph
from aspen_jax.primitive import primitive
from aspen_jax.targets import registry

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr

    from aspen_jax.api.function import AspenFunction
    from aspen_jax.graph.tilegraph import TileGraph
    from aspen_jax.report.explain import Explanation

    Function = AspenFunction[..., Any]


def graph_of(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TileGraph:
    """Gives what `AspenFunction.graph` does."""
    explanation = explanation_of(function, args, kwargs, chooses=False)
    if len(explanation.parts) != 1 or explanation.fallbacks:
        left = ", ".join(sorted({fallback.primitive for fallback in explanation.fallbacks})) or "all of it"
        raise UnsupportedError(
            f"{function.__name__} as a whole is not one graph of tiles; it has {len(explanation.parts)}; left to XLA: {left}; "
            "explain() with the same arguments says where and why"
        )
    jaxpr, (call,) = calls_of(function, args, kwargs)
    graph = whole_graph(jaxpr, compile_jaxpr(call, options(function, chooses=False)))
    input_names, result_names = _names(function, args, kwargs)
    return dataclasses.replace(graph, input_names=input_names, result_names=result_names)


def explanation_of(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], *, chooses: bool = True) -> Explanation:
    """What becomes of the function, with or without leaving to XLA what that does as fast."""
    from aspen_jax.report.explain import Explanation

    jaxpr, compiled = _compiled(function, args, kwargs, chooses=chooses)
    explanation = Explanation.of(function.__name__, jaxpr.jaxpr, compiled, primitive.why_inlined(jaxpr))
    return dataclasses.replace(explanation, on_gpu=_on_gpu(function, [call for call, _ in compiled]) if chooses else ())


def _on_gpu(function: Function, calls: Sequence[ClosedJaxpr]) -> tuple[str, ...]:
    """Who runs calls on devices that this process has, and why."""
    targets = registry.all_named(function._choices.device)
    said = (target.who_runs(call, function._choices) for target in targets for call in calls)
    return tuple(dict.fromkeys(filter(None, said)))


def calls_of(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ClosedJaxpr, list[ClosedJaxpr]]:
    """The jaxpr of a call, and each function in it that is to be tiled."""
    jaxpr = nnx_state.call(function._jitted.trace, *function._seen(args, kwargs), function._holds_objects).jaxpr
    return jaxpr, [equation.params["call_jaxpr"] for equation in jaxpr.eqns if equation.primitive is primitive.aspen_call_p]


def _compiled(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], *, chooses: bool = True
) -> tuple[ClosedJaxpr, list[tuple[ClosedJaxpr, Compiled]]]:
    """The jaxpr of a call, each function in it that is to be tiled, and what becomes of that."""
    jaxpr, calls = calls_of(function, args, kwargs)
    return jaxpr, [(call, compile_jaxpr(call, options(function, chooses=chooses))) for call in calls]


def options(function: Function, *, chooses: bool = True) -> Options:
    """How its calls are compiled, whatever of them is left to XLA; by `chooses`, also what XLA does as fast."""
    choices = function._choices._replace(strict=False)
    target = registry.of_function(choices.device).here()
    return Options(choices, target, chooses=chooses and not function._choices.strict)


def _names(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the graph's inputs and results; none where two of them would have the same."""

    def named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[str], list[str]]:
        names = arguments.names(function.__wrapped__, args, kwargs)

        def kept(structure: arguments.Structure, _: list[Any]) -> list[str]:
            static = {index for index, _ in structure.static}
            return [name for index, name in enumerate(names) if index not in static]

        inputs = function._jitted.on_arguments(kept, args, kwargs, shapes_traced=True)
        return inputs, leaf_names("result", results.whole(function._jitted.trace(args, kwargs).out_info, arrays_only=True))

    found = nnx_state.call(named, *function._seen(args, kwargs), function._holds_objects)
    of_inputs, of_results = (tuple(names) if len(set(names)) == len(names) else () for names in found)
    return of_inputs, of_results

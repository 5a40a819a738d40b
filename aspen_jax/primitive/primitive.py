"""The JAX primitive `aspen_call`: a jaxpr that is tiled when it is lowered for a platform with a back-end (lowering/rules.py).

Every transformation rule goes back to the original jaxpr, transforms that with JAX, traces the result and binds it again. So what
comes out of vmap, grad or jvp is tiled as well, and means what it means without us.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from typing import Any

import jax
from jax import core
from jax.experimental import hijax
from jax.extend.core import (
    ClosedJaxpr,
    Jaxpr,
    Literal,
    Primitive,
    Var,
    jaxpr_as_fun,
    jaxprs_in_params,
    new_jaxpr_eqn,
    no_effects,
)
from jax.extend.core.primitives import closed_call_p
from jax.interpreters import ad, batching
from jax.interpreters import partial_eval as pe

from aspen_jax.errors import UnsupportedError
from aspen_jax.primitive import one_by_one, warning
from aspen_jax.primitive.choices import Choices
from aspen_jax.primitive.masks import as_mask, masks


class _Call(Primitive):
    def bind(self, *operands: Any, subfuns: Sequence[Any] = (), **params: Any) -> Any:
        if not subfuns:
            return super().bind(*operands, **params)
        # jax.experimental.checkify has no public table of rules. Where an equation's jaxpr is called `call_jaxpr` it adds checks
        # to that, and binds the primitive again to the outcome, a function of more operands, as JAX's own calls take it.
        (checked,) = subfuns
        return call(checked.call_wrapped, operands, {}, choices=params["choices"])

    def to_lojax(self, *operands: Any, call_jaxpr: ClosedJaxpr, choices: Choices) -> list[Any]:
        # JAX asks when nothing transforms the call any more, so rules of jax.experimental.hijax are not needed from here on.
        return bind(expanded(call_jaxpr), operands, choices=choices)


aspen_call_p = _Call("aspen_call")
aspen_call_p.multiple_results = True


def call(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *, choices: Choices, shows_masks: bool = False
) -> Any:
    """Traces `fun` once and calls it through `aspen_call`.

    Args:
        fun: takes and returns pytrees of arrays.
        args: positional arguments, pytrees of arrays.
        kwargs: keyword arguments, pytrees of arrays.
        choices: how it is compiled.
        shows_masks: whether XLA is shown which results are converted bools, for products with them outside of the call.

    Returns:
        What `fun` returns.

    Raises:
        UnsupportedError: `choices.strict` and the function as a whole cannot be tiled.
    """
    jaxpr, result = jax.make_jaxpr(fun, return_shape=True)(*args, **kwargs)
    operands = jax.tree.leaves((args, kwargs))
    captured = [const for const in jaxpr.consts if isinstance(const, core.Tracer)]
    if captured:
        jaxpr = _captured_as_arguments(jaxpr, captured, operands)
    outs = bind(jaxpr, [*captured, *operands], choices=choices)
    if shows_masks:
        found = masks(jaxpr.jaxpr)
        is_mask = [isinstance(var, Var) and var in found for var in jaxpr.jaxpr.outvars]
        outs = [as_mask(out) if shown else out for out, shown in zip(outs, is_mask, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(result), outs)


def _captured_as_arguments(jaxpr: ClosedJaxpr, captured: Sequence[Any], operands: Sequence[Any]) -> ClosedJaxpr:
    """The same computation with the tracers that the function closed over as its first arguments.

    A parameter of an equation may hold arrays, but a tracer there would escape every transformation.
    """

    def fun(captured: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        tracers = iter(captured)
        consts = [next(tracers) if isinstance(const, core.Tracer) else const for const in jaxpr.consts]
        return jaxpr_as_fun(ClosedJaxpr(jaxpr.jaxpr, consts))(*operands)

    return jax.make_jaxpr(fun)(captured, operands)


def bind(jaxpr: ClosedJaxpr, operands: Sequence[Any], *, choices: Choices) -> list[Any]:
    """Calls a jaxpr through `aspen_call`, or equation by equation where that cannot be."""
    reason = why_inlined(jaxpr)
    if reason is not None:
        if choices.strict:
            raise UnsupportedError(f"the function {reason}, so it cannot be tiled; take that out, or drop strict=True")
        warning.warn_of_all(jaxpr.jaxpr, reason, choices)
        return jaxpr_as_fun(jaxpr)(*operands)
    # Outputs that are inputs, or come twice, would be copied. Most residuals of a linearized function are of that kind.
    values: dict[Any, Any] = dict(zip([*jaxpr.jaxpr.constvars, *jaxpr.jaxpr.invars], [*jaxpr.consts, *operands], strict=True))
    outvars = jaxpr.jaxpr.outvars
    computed = []
    for outvar in outvars:
        computed.append(isinstance(outvar, Literal) or outvar not in values)
        if not isinstance(outvar, Literal):
            values.setdefault(outvar, None)
    pruned, used = _swept(jaxpr, computed)
    results = iter(aspen_call_p.bind(*compress(operands, used), **parameters(pruned, choices=choices)) if any(computed) else ())
    outs = []
    for outvar, is_computed in zip(outvars, computed, strict=True):
        out = next(results) if is_computed else values[outvar]
        if is_computed and not isinstance(outvar, Literal):
            values[outvar] = out
        outs.append(out)
    return outs


def parameters(jaxpr: ClosedJaxpr, *, choices: Choices) -> dict[str, Any]:
    """The parameters of a call of a jaxpr."""
    return {"call_jaxpr": jaxpr, "choices": choices}


def _swept(jaxpr: ClosedJaxpr, wanted: Sequence[bool]) -> tuple[ClosedJaxpr, list[bool]]:
    """Prunes as `prune` does, but an equation is kept or dropped as it is.

    What JAX makes of a `custom_jvp` function that had outputs which nobody reads has no derivative where its rule gives symbolic
    zeros (JAX 0.10 to 0.12).
    """
    outvars = list(compress(jaxpr.jaxpr.outvars, wanted))
    live = {outvar for outvar in outvars if not isinstance(outvar, Literal)}
    eqns = []
    for eqn in reversed(jaxpr.jaxpr.eqns):
        if not live.isdisjoint(eqn.outvars):
            eqns.append(eqn)
            live.update(atom for atom in eqn.invars if not isinstance(atom, Literal))
    used_inputs = [var in live for var in jaxpr.jaxpr.invars]
    invars = list(compress(jaxpr.jaxpr.invars, used_inputs))
    return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(invars=invars, outvars=outvars, eqns=eqns[::-1])), used_inputs


def prune(jaxpr: ClosedJaxpr, used_outputs: Sequence[bool], *, keep_inputs: bool = False) -> tuple[ClosedJaxpr, list[bool]]:
    """The jaxpr with some outputs only, inside of its equations too, and which of its inputs it still takes."""
    pruned, used_inputs = pe.dce_jaxpr(jaxpr.jaxpr, list(used_outputs), keep_inputs)
    return ClosedJaxpr(pruned, jaxpr.consts), used_inputs


def why_inlined(jaxpr: ClosedJaxpr) -> str | None:
    """Why a jaxpr is left to JAX altogether, in words that follow "the function", or None."""
    if jaxpr.effects:
        # Order, tokens and axis names are between the effect and JAX; they would not survive inside a custom call.
        return f"has effects ({', '.join(sorted(map(str, jaxpr.effects)))})"
    if _is_high(jaxpr) and not (hasattr(pe, "lower_jaxpr2") and _has_forward_rules(jaxpr.jaxpr)):
        # Before 0.12 only JAX can expand them. A rule for jax.vjp alone is not asked for from inside a rule of ours.
        return "has a primitive of jax.experimental.hijax without rules for jvp and lin"
    for aval in jaxpr.in_avals:
        if not isinstance(aval, core.ShapedArray):
            return f"takes an argument that is not an array ({aval})"
        if not all(isinstance(size, int) for size in aval.shape):
            return f"takes an argument with a symbolic shape ({aval.str_short()})"
    if _has_aval(jaxpr.jaxpr, _is_reduced_later):
        # A custom call has no such type, and JAX asks for it behind the call: in shard_map, in a constraint, in gradients.
        return "computes with sums that devices have not added up yet (unreduced), or with what has such gradients (reduced)"
    for what, avals in (("closes over", map(jax.typeof, jaxpr.consts)), ("returns", jaxpr.out_avals)):
        for aval in avals:
            if not isinstance(aval, core.ShapedArray):
                return f"{what} a value that is not an array ({aval})"
    return "computes with tokens of XLA" if _has_aval(jaxpr.jaxpr, _is_token) else None


def _has_aval(jaxpr: Jaxpr, is_such: Callable[[Any], bool]) -> bool:
    """Whether a jaxpr has a value of some kind, at any depth."""
    inside = (inner for equation in jaxpr.eqns for inner in jaxprs_in_params(equation.params))
    variables = (*jaxpr.constvars, *jaxpr.invars, *(var for equation in jaxpr.eqns for var in equation.outvars))
    return any(is_such(var.aval) for var in variables) or any(_has_aval(inner, is_such) for inner in inside)


def _is_reduced_later(aval: Any) -> bool:
    """Whether each device has a part of the sum that an array stands for, or will have one of its gradient."""
    # Outside of shard_map the sharding says so, inside its manual axes do.
    specs = (getattr(getattr(aval, "sharding", None), "spec", None), getattr(aval, "mat", None))
    return any(getattr(spec, "unreduced", None) or getattr(spec, "reduced", None) for spec in specs)


def _is_token(aval: Any) -> bool:
    """Whether a value has neither a shape nor bytes."""
    return not hasattr(aval, "dtype")


def expanded(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr with what primitives of `jax.experimental.hijax` stand for in their place."""
    return getattr(pe, "lower_jaxpr2")(jaxpr) if _is_high(jaxpr) else jaxpr  # noqa: B009 (JAX 0.12 and later)


def _is_high(jaxpr: ClosedJaxpr) -> bool:
    return getattr(jaxpr.jaxpr, "is_high", False)


def _has_forward_rules(jaxpr: Jaxpr) -> bool:
    """Whether each primitive of `jax.experimental.hijax` inside has rules for forward mode and for linearization."""
    base: Any = getattr(hijax, "HiPrim")  # noqa: B009 (JAX 0.12 and later)

    def has_rules(prim: Any) -> bool:
        return not isinstance(prim, base) or (type(prim).jvp is not base.jvp and type(prim).lin is not base.lin)

    return all(
        has_rules(equation.params.get("_prim")) and all(map(_has_forward_rules, jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )


def flag(name: str) -> bool:
    """A flag of JAX as this thread sees it."""
    return getattr(jax.config, name)


@aspen_call_p.def_abstract_eval
def _abstract_eval(*_: Any, call_jaxpr: ClosedJaxpr, choices: Choices) -> list[Any]:
    del choices
    return list(call_jaxpr.out_avals)


@partial(jax.jit, static_argnames=("call_jaxpr", "choices"))
def _jitted(*operands: Any, call_jaxpr: ClosedJaxpr, choices: Choices) -> list[Any]:
    return aspen_call_p.bind(*operands, call_jaxpr=call_jaxpr, choices=choices)


@aspen_call_p.def_impl
def _impl(*operands: Any, call_jaxpr: ClosedJaxpr, choices: Choices) -> list[Any]:
    if flag("jax_disable_jit") or flag("jax_debug_nans") or flag("jax_debug_infs"):
        return one_by_one.evaluate(call_jaxpr.jaxpr, call_jaxpr.consts, *operands)
    return _jitted(*operands, call_jaxpr=call_jaxpr, choices=choices)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, call_jaxpr: ClosedJaxpr, choices: Choices
) -> tuple[list[Any], list[Any]]:
    # Forward mode is one call that keeps nothing. Where tangents are known only later (jax.linearize, jax.vjp), the call returns
    # residuals beside the outputs: the forward pass is one jaxpr, which is tiled, and the linear part stays in sight of JAX,
    # which may evaluate or transpose it.
    moves = [not isinstance(tangent, ad.Zero) and tangent.dtype != jax.dtypes.float0 for tangent in tangents]
    depends: list[bool] = []

    def forward(primals: Sequence[Any], tangents: Sequence[Any] | None) -> tuple[list[Any], Any]:
        def moving(*args: Any) -> list[Any]:
            new = iter(args)
            outs = jaxpr_as_fun(call_jaxpr)(
                *(next(new) if moved else primal for moved, primal in zip(moves, primals, strict=True))
            )
            depends.extend(isinstance(out, ad.JVPTracer) for out in outs)
            return outs

        moved = list(compress(primals, moves))
        if tangents is None:
            return jax.linearize(moving, *moved)
        outs, outs_dot = jax.jvp(moving, moved, tangents)
        return outs, list(compress(outs_dot, depends))  # the others are zeros

    directions = list(compress(tangents, moves))
    if any(isinstance(tangent, pe.JaxprTracer) for tangent in directions):
        outs, linear = call(forward, (primals, None), {}, choices=choices, shows_masks=True)
        outs_dot = linear(*directions)
    else:
        outs, some = call(forward, (primals, directions), {}, choices=choices)
        found = iter(some)
        outs_dot = [next(found) if is_dependent else None for is_dependent in depends]
    zeros = (dot is None or dot.dtype == jax.dtypes.float0 for dot in outs_dot)
    return outs, [
        ad.Zero(jax.typeof(out).to_tangent_aval()) if zero else dot for out, dot, zero in zip(outs, outs_dot, zeros, strict=True)
    ]


ad.primitive_jvps[aspen_call_p] = _jvp


def _transpose(cotangents: Sequence[Any], *operands: Any, call_jaxpr: ClosedJaxpr, choices: Choices) -> list[Any]:
    linear = [ad.is_undefined_primal(operand) for operand in operands]
    wanted = [not isinstance(cotangent, ad.Zero) for cotangent in cotangents]
    shapes = [jax.ShapeDtypeStruct(item.aval.shape, item.aval.dtype) for item in operands if ad.is_undefined_primal(item)]

    def backward(known: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, ...]:
        def forward(*unknown: Any) -> list[Any]:
            parts = iter(known), iter(unknown)
            outs = jaxpr_as_fun(call_jaxpr)(*(next(parts[is_linear]) for is_linear in linear))
            return list(compress(outs, wanted))

        return jax.linear_transpose(forward, *shapes)(list(cotangents))

    known = [operand for operand, is_linear in zip(operands, linear, strict=True) if not is_linear]
    results = iter(call(backward, (known, list(compress(cotangents, wanted))), {}, choices=choices))
    return [next(results) if is_linear else None for is_linear in linear]


ad.primitive_transposes[aspen_call_p] = _transpose

# Reports what vmap knows of a value and nobody else is told: the array that it stands for, and which axis of it is mapped.
_unmap_p = Primitive("aspen_unmap")
_unmap_p.multiple_results = True


def _unmap(axis: Any, values: Sequence[Any], dims: Sequence[int | None], *, into: list[Any]) -> tuple[list[Any], list[Any]]:
    del axis
    into.append((values[0], dims[0]))
    return [], []


batching.fancy_primitive_batchers[_unmap_p] = _unmap


def _batch(
    axis: Any, operands: Sequence[Any], dims: Sequence[int | None], *, call_jaxpr: ClosedJaxpr, choices: Choices
) -> tuple[list[Any], list[int | None]]:
    if all(dim is None for dim in dims):
        return bind(call_jaxpr, operands, choices=choices), [None] * len(call_jaxpr.out_avals)
    out_dims: list[int | None] = []

    def batched(*operands: Any) -> list[Any]:
        outs: list[tuple[Any, int | None]] = []

        def one(*operands: Any) -> None:
            for out in jaxpr_as_fun(call_jaxpr)(*operands):
                _unmap_p.bind(out, into=outs)

        # An output that does not depend on a mapped input must say so, or jacfwd of jacrev fails; out_axes cannot.
        jax.vmap(one, in_axes=tuple(dims), axis_size=axis.size, spmd_axis_name=axis.spmd_name)(*operands)
        out_dims.extend(dim for _, dim in outs)
        return [value for value, _ in outs]

    return call(batched, operands, {}, choices=choices), out_dims


batching.fancy_primitive_batchers[aspen_call_p] = _batch


def _eliminate_dead_code(used_outputs: list[bool], *live_inputs_and_eqn: Any) -> tuple[list[bool], Any]:
    # JAX 0.11 and later hand in the live inputs too. XLA cannot remove anything from inside a custom call, so we do it here.
    eqn = live_inputs_and_eqn[-1]
    if not any(used_outputs):
        return [False] * len(eqn.invars), None
    if all(used_outputs):
        return [True] * len(eqn.invars), eqn
    jaxpr, used_inputs = prune(eqn.params["call_jaxpr"], used_outputs)
    return used_inputs, eqn.replace(
        invars=list(compress(eqn.invars, used_inputs)),
        outvars=list(compress(eqn.outvars, used_outputs)),
        params={**eqn.params, "call_jaxpr": jaxpr},
    )


pe.dce_rules[aspen_call_p] = _eliminate_dead_code


def _split(saveable: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: Any) -> tuple[Any, ...]:
    # A policy of jax.checkpoint decides equation by equation, so it has to see those inside, as JAX's rule for calls makes it.
    rule: Any = pe.partial_eval_jaxpr_custom_rules[closed_call_p]
    call = eqn.replace(primitive=closed_call_p, params={"call_jaxpr": eqn.params["call_jaxpr"]})
    *parts, unknown_outs, instantiated_outs, residuals = rule(saveable, unknown, instantiated, call)
    # What a policy moves to another memory is left to XLA: a custom call reads and writes in one.
    variables = [var for part in parts for var in (*part.invars, *part.outvars)]
    if len({getattr(var.aval, "memory_space", None) for var in variables}) == 1:
        parts = [part.replace(primitive=aspen_call_p, params={**eqn.params, **part.params}) for part in parts]
    parts = [part if part.outvars else None for part in parts]
    if None not in parts:
        parts[1] = _shown_masks(*parts)
    return *parts, unknown_outs, instantiated_outs, residuals


def _shown_masks(first: Any, second: Any) -> Any:
    """The second of two calls, told which of its operands the first one has converted from bools."""
    jaxpr: ClosedJaxpr = first.params["call_jaxpr"]
    found = masks(jaxpr.jaxpr)
    outs = {out for out, var in zip(first.outvars, jaxpr.jaxpr.outvars, strict=True) if isinstance(var, Var) and var in found}
    is_mask = [isinstance(atom, Var) and atom in outs for atom in second.invars]
    if not any(is_mask):
        return second
    inner: ClosedJaxpr = second.params["call_jaxpr"]

    def shown(*args: Any) -> list[Any]:
        return jaxpr_as_fun(inner)(*(as_mask(arg) if shown else arg for arg, shown in zip(args, is_mask, strict=True)))

    return second.replace(params={**second.params, "call_jaxpr": jax.make_jaxpr(shown)(*inner.in_avals)})


pe.partial_eval_jaxpr_custom_rules[aspen_call_p] = _split


def _partial_eval(trace: Any, *tracers: Any, **params: Any) -> Sequence[Any]:
    # The same split of a call that is being traced: what is known is computed now, the rest is one equation of the trace.
    knowns = [tracer.pval.get_known() for tracer in tracers]
    unknown = [known is None for known in knowns]
    if not any(unknown):
        return aspen_call_p.bind(*knowns, **params)
    jaxpr = params["call_jaxpr"]
    eqn = new_jaxpr_eqn([*map(Var, jaxpr.in_avals)], [*map(Var, jaxpr.out_avals)], aspen_call_p, params, no_effects)
    now, later, *_ = _split(jax.checkpoint_policies.everything_saveable, unknown, unknown, eqn)
    values = {var: known if known is not None else tracer for var, known, tracer in zip(eqn.invars, knowns, tracers, strict=True)}
    if now is not None:
        outs = bind(now.params["call_jaxpr"], [values[var] for var in now.invars], choices=params["choices"])
        values.update(zip(now.outvars, outs, strict=True))
    if later is not None:
        outs = trace.default_process_primitive(later.primitive, [values[var] for var in later.invars], later.params)
        values = {**dict(zip(later.outvars, outs, strict=True)), **values}
    return [values[var] for var in eqn.outvars]


pe.custom_partial_eval_rules[aspen_call_p] = _partial_eval

"""jaxpr -> what a lowering calls: one custom call for each tileable part, ordinary JAX for the rest."""

from __future__ import annotations

import dataclasses
import operator
import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core, source_info_util

from aspen_jax import apu, forks, runtime
from aspen_jax.errors import UnsupportedError
from aspen_jax.frontend import trace as frontend
from aspen_jax.frontend.partition import Tileable
from aspen_jax.frontend.trace import Fallback
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.loop import LOOP
from aspen_jax.passes import CHOICE, disabled_by_environment, run_passes, stages_of
from aspen_jax.primitive import control_flow, sharding
from aspen_jax.primitive.choices import Choices
from aspen_jax.primitive.masks import as_mask
from aspen_jax.primitive.primitive import expanded, prune
from aspen_jax.targets import registry
from aspen_jax.targets.target import Target

_LONGEST_SCOPE = 120
# Of a body that stays with XLA, so many reasons are told.
_MOST_REASONS = 3


@dataclasses.dataclass(frozen=True)
class Options:
    """What changes how a function is compiled.

    Attributes:
        choices: what the decorator was told.
        target: the device; by default the CPU of this process.
        disabled_passes: passes that are left out, by name.
        chooses: whether XLA runs the parts that it is faster at; never so with `choices.strict`.
        num_devices: how many devices XLA's partitioner may spread the work over.
    """

    choices: Choices = Choices()  # noqa: RUF009 - immutable
    target: Target = dataclasses.field(default_factory=lambda: registry.of_function(registry.AUTO).here())
    disabled_passes: frozenset[str] = dataclasses.field(default_factory=disabled_by_environment)
    chooses: bool = True
    num_devices: int = 1

    def __post_init__(self) -> None:
        chooses = self.chooses and self.target.chooses and not self.choices.strict and CHOICE not in self.disabled_passes
        object.__setattr__(self, "chooses", chooses)

    def why_no_kernel(self, op: Op) -> str | None:
        """Why XLA must compute an op; None where tiles can."""
        if op.family is LOOP and self.num_devices > 1:
            return "XLA cuts a loop over devices, and each turn's tiles with it"
        return self.target.why_no_kernel(op)


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A tileable part of a function.

    Attributes:
        inputs: the values that it reads, in the order of the custom call's operands; constants follow them.
        outputs: the values that it gives, in the order of the custom call's results.
        program: its program after all passes.
        graph: its tile graph.
        graph_bytes: the graph as the custom call's attribute.
        traced: its program before all passes.
        options: how it was built.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    program: Program
    graph: TileGraph
    graph_bytes: np.ndarray
    traced: Program
    options: Options

    @classmethod
    def build(cls, traced: Program, options: Options) -> Part:
        """Rewrite, tile and encode one part of a trace."""
        target = options.target
        program = run_passes(traced, options.disabled_passes, target.machine, stages_of(type(target)))
        # What has been packed is held once.
        program = program.replace(constants=apu.pack(program.constants).constants)
        graph = apu.build(program, target.num_workers, target.machine).with_run_key(options.choices.run_key)
        outputs = tuple(operand.value for operand in traced.outputs)
        runtime.trust(graph.to_bytes())
        return cls(traced.inputs, outputs, program, graph, np.frombuffer(graph.to_bytes(), np.uint8), traced, options)

    def call(self, *operands: Any) -> list[Any]:
        """The custom call."""
        results = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in self.outputs]
        with jax.named_scope(self.scope):
            return self.options.target.call(self, results, *operands, *self.graph.constants)

    def call_partitionable(self, *operands: Any) -> list[Any]:
        """The custom call where more than one device shares the work: each runs its own entries of the batch, if that can be."""

        def run(program: Program, operands: Sequence[Any]) -> list[Any]:
            return Part.build(program, self.options).call(*operands)

        operation = sharding.partitionable(self.traced, run, self.graph.to_bytes())
        return self.call(*operands) if operation is None else operation(*operands)

    @property
    def scope(self) -> str:
        """The outermost named scopes of its ops, for XLA's metadata of the custom call and so for profiles."""
        scopes = dict.fromkeys(op.name.partition("/")[0] for op in self.program.ops if "/" in op.name)
        joined = "+".join(scopes)
        return joined if len(joined) <= _LONGEST_SCOPE else joined[: _LONGEST_SCOPE - 3] + "..."


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A function cut into custom calls and equations that stay with XLA.

    Attributes:
        consts: what the jaxpr closes over.
        trace: the converted jaxpr.
        steps: parts and fallbacks in the order in which they run.
        options: how it was compiled.
    """

    consts: tuple[Any, ...]
    trace: frontend.Trace
    steps: tuple[Part | Fallback, ...]
    options: Options

    @property
    def parts(self) -> tuple[Part, ...]:
        """The tiled parts, one custom call each."""
        return tuple(step for step in self.steps if isinstance(step, Part))

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """The equations that stay with XLA, control flow with its tiled bodies among them."""
        return tuple(step for step in self.steps if isinstance(step, Fallback))

    @property
    def bodies(self) -> tuple[Compiled, ...]:
        """The tiled bodies of control flow, and the bodies in those."""
        direct = [body for fallback in self.fallbacks for _, body in self.bodies_of(fallback)]
        return tuple(body for item in direct for body in (item, *item.bodies))

    def bodies_of(self, fallback: Fallback) -> Iterator[tuple[core.ClosedJaxpr, Compiled]]:
        """The tiled bodies of one equation of control flow, as jaxprs and compiled."""
        for jaxpr in control_flow.tiled_bodies(fallback.equation):
            yield jaxpr, compile_jaxpr(jaxpr, _options_of_bodies(fallback, self.options))

    def call(self, *arguments: Any) -> list[Any]:
        """The function on flat arguments, as JAX operations; for use under a trace."""
        environment: dict[Value, Any] = dict(self.trace.constants)
        environment.update(zip(self.trace.inputs, arguments, strict=True))
        from_tiles: set[Value] = set()
        for step in self.steps:
            if isinstance(step, Part):
                operands = [environment[value] for value in step.inputs]
                results = step.call(*operands) if self.options.num_devices == 1 else step.call_partitionable(*operands)
                environment.update(zip(step.outputs, results, strict=True))
                from_tiles.update(step.outputs)
            else:
                run_fallback(step, environment, self.trace.masks & from_tiles)
        return [environment[item] if isinstance(item, Value) else item for item in self.trace.outputs]


def run_fallback(fallback: Fallback, environment: dict[Value, Any], masks: Collection[Value]) -> None:
    """Evaluate one equation with JAX, through a jaxpr of its own so that its name and source line are kept.

    XLA cannot see that the numbers among `masks` were bools. It is shown, so that it selects as it would without tiles.
    """
    # Its name is relative to the innermost call that was inlined.
    scope = source_info_util.new_name_stack(fallback.name.rpartition("/")[0])
    equation = fallback.equation.replace(source_info=fallback.equation.source_info.replace(name_stack=scope))
    variables = {atom: item for atom, item in zip(equation.invars, fallback.inputs, strict=True) if isinstance(atom, core.Var)}
    debug_info = core.DebugInfo("aspen_call", equation.primitive.name, None, None)
    jaxpr = core.Jaxpr((), list(variables), list(equation.outvars), [equation], equation.effects, debug_info)
    arguments = [environment[item] if isinstance(item, Value) else item for item in variables.values()]
    if masks:
        is_mask = [isinstance(item, Value) and item in masks for item in variables.values()]
        arguments = [as_mask(item) if shown else item for item, shown in zip(arguments, is_mask, strict=True)]
    arguments = [typed_as(item, var.aval) for var, item in zip(variables, arguments, strict=True)]
    results = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))(*arguments)
    environment.update(zip(fallback.outputs, results, strict=True))


def typed_as(item: Any, aval: Any) -> Any:
    """An array of the type that a value was traced with: the mesh axes over which it varies, and how explicit ones cut it.

    JAX goes by these again here. Constants, and what tiles compute, have lost them.
    """
    wanted, found = aval.sharding, jax.typeof(item).sharding
    missing = aval.manual_axis_type.varying - jax.typeof(item).manual_axis_type.varying
    # An array of no mesh, such as a constant, fits any mesh without explicit axes.
    is_of_mesh = not wanted.mesh.empty and bool(not found.mesh.empty or wanted.mesh.explicit_axes)
    is_cut_otherwise = is_of_mesh and (wanted.mesh, wanted.spec) != (found.mesh, found.spec)
    if not (missing or is_cut_otherwise):
        return item
    with jax.sharding.use_abstract_mesh(wanted.mesh):
        item = jax.sharding.reshard(item, wanted.spec) if is_cut_otherwise else item
        return jax.lax.pcast(item, tuple(sorted(missing)), to="varying") if missing else item


_compiled: weakref.WeakKeyDictionary[core.Jaxpr, dict[Options, Compiled]] = weakref.WeakKeyDictionary()
_lock = forks.Lock()


def compile_jaxpr(jaxpr: core.ClosedJaxpr, options: Options) -> Compiled:
    """Cut, rewrite, tile and encode a function; the result is remembered as long as the jaxpr lives.

    Raises:
        UnsupportedError: `options.choices.strict`, and an equation has no tile kernel.
    """
    with _lock:
        known = _compiled.get(jaxpr.jaxpr, {}).get(options)
    # One jaxpr may be closed over different constants.
    if known is not None and all(map(operator.is_, known.consts, jaxpr.consts)):
        return known
    without_dead_code, _ = prune(expanded(jaxpr), [True] * len(jaxpr.out_avals), keep_inputs=True)
    trace = frontend.trace(without_dead_code, options.why_no_kernel)
    refused = [item for item in trace.fallbacks if not (item.is_tileable or control_flow.is_control_flow(item.equation))]
    if options.choices.strict and refused:
        raise UnsupportedError(_refusal(refused))
    is_whole = len(trace.steps) == 1 and not options.choices.is_repeated
    steps = tuple(item for step in trace.steps for item in _decided(step, options, is_whole=is_whole))
    compiled = Compiled(tuple(jaxpr.consts), trace, steps, options)
    with _lock:
        of_jaxpr = _compiled.setdefault(jaxpr.jaxpr, {})
        of_jaxpr[options] = compiled
        of_jaxpr[dataclasses.replace(options, target=options.target.settled())] = compiled
    return compiled


def _decided(step: Tileable | Fallback, options: Options, *, is_whole: bool) -> tuple[Part | Fallback, ...]:
    """A part as tiles, or its equations where XLA is as fast; of control flow, each body so."""
    if isinstance(step, Fallback):
        return (_tile_bodies(step, options),)
    part = Part.build(step.program, options)
    reason = options.target.why_left_to_xla(step, part, is_whole=is_whole) if options.chooses else None
    return (part,) if reason is None else tuple(_tile_bodies(item, options) for item in step.left_to_xla(reason))


def _options_of_bodies(fallback: Fallback, options: Options) -> Options:
    """How what control flow runs is compiled."""
    choices, equation = options.choices, fallback.equation
    is_repeated = choices.is_repeated or control_flow.is_loop(equation)
    is_body = choices.is_body or control_flow.has_computations(equation)
    return dataclasses.replace(options, choices=choices._replace(function="", is_repeated=is_repeated, is_body=is_body))


def whole_graph(jaxpr: core.ClosedJaxpr, compiled: Compiled) -> TileGraph:
    """The graph of a function that is one part, with its arguments as inputs and all that it returns as results, in order.

    The custom call goes without arguments that no op reads, and without results that are not computed: JAX hands those on. An
    argument that no op reads and no tile can hold (a key, complex numbers) is an input without elements here.

    Args:
        jaxpr: the function, which calls what was compiled and computes nothing else.
        compiled: one part and no fallback.

    Raises:
        UnsupportedError: it returns an argument or a constant that tiles cannot hold.
    """
    (part,), (equation,) = compiled.parts, jaxpr.jaxpr.eqns
    values: dict[Any, Value | np.ndarray] = dict(zip(equation.invars, compiled.trace.inputs, strict=True))
    inputs = []
    for var in jaxpr.jaxpr.invars:
        value = values.setdefault(var, _given(var.aval))
        assert isinstance(value, Value), var  # arguments of the call are no constants
        inputs.append(value)
    values.update(zip(equation.outvars, compiled.trace.outputs, strict=True))
    values.update(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
    constants = list(compiled.trace.constants)
    outputs = []
    for number, atom in enumerate(jaxpr.jaxpr.outvars):
        try:
            value = frontend.held(atom.aval)
        except frontend.Unsupported as error:
            raise UnsupportedError(f"result {number} of the function fits no graph: {error}; leave it out") from None
        item = atom.val if isinstance(atom, core.Literal) else values[atom]
        if not isinstance(item, Value):
            constants.append((value, np.asarray(item, value.dtype)))
            item = value
        outputs.append(item)
    if (*inputs, *outputs) == (*part.inputs, *part.outputs):
        return part.graph
    program = Program(tuple(inputs), tuple(constants), part.traced.ops, tuple(map(Operand.whole, outputs)))
    return Part.build(program, part.options).graph


def keeping_values(graph: TileGraph, options: Options) -> TileGraph:
    """The same graph with memory of its own for each value.

    A run can go on from the one before. No tile waits for those that read what it writes over.
    """
    program = graph.program()
    ops = tuple(op.replace(in_place=False) for op in program.ops)
    program = program.replace(ops=ops, constants=apu.pack(program.constants).constants)
    kept = apu.build(program, options.target.num_workers, options.target.machine, reuse=False).with_run_key(
        options.choices.run_key
    )
    kept = dataclasses.replace(kept, input_names=graph.input_names, result_names=graph.result_names)
    runtime.trust(kept.to_bytes())
    return kept


def _given(aval: Any) -> Value:
    try:
        return frontend.held(aval)
    except frontend.Unsupported:
        return Value(runtime.NOTHING.shape, runtime.NOTHING.dtype)


def _tile_bodies(fallback: Fallback, options: Options) -> Fallback:
    if not control_flow.is_control_flow(fallback.equation):
        return fallback
    of_bodies = _options_of_bodies(fallback, options)

    def why_left(body: core.ClosedJaxpr) -> str | None:
        if not options.chooses:
            return None
        compiled = compile_jaxpr(body, of_bodies)
        if compiled.parts or compiled.bodies:
            return None
        reasons = list(dict.fromkeys(item.reason for item in compiled.fallbacks))
        return "; ".join(reasons[:_MOST_REASONS]) or control_flow.TOO_LITTLE

    equation, reasons = control_flow.with_tiled_bodies(fallback.equation, choices=of_bodies.choices, why_left=why_left)
    return dataclasses.replace(fallback, equation=equation, reason=_reason_of_bodies(equation, reasons))


def _reason_of_bodies(equation: core.JaxprEqn, reasons: Sequence[str]) -> str:
    bodies = sum(1 for _ in control_flow.tiled_bodies(equation))
    if bodies:
        return f"control flow; bodies that run as tiles: {bodies}"
    # A loop's condition does little; what holds its body counts.
    others = dict.fromkeys(reason for reason in reasons if reason != control_flow.TOO_LITTLE)
    if not others:
        return f"control flow over {control_flow.TOO_LITTLE}"
    return f"control flow whose bodies stay with XLA: {'; '.join(others)}"


def _refusal(fallbacks: Sequence[Fallback]) -> str:
    lines = []
    for fallback in fallbacks:
        shapes = ", ".join(str(atom.aval.str_short()) for atom in fallback.equation.invars)
        where = f" at {fallback.source}" if fallback.source else ""
        lines.append(f"  {fallback.equation.primitive.name}({shapes}){where}: {fallback.reason}")
    return (
        "strict=True, but these equations have no tile kernel:\n"
        + "\n".join(dict.fromkeys(lines))
        + "\nLet them run in XLA with strict=False, or write the function without them."
    )

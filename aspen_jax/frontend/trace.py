"""jaxpr -> Program parts: inlines calls, folds constants, converts what tiles can run and leaves the rest to XLA.

The jaxpr becomes a sequence of steps: tileable parts (a `Program` each, the largest convex ones) and single equations that stay
with XLA between them. A function that is supported as a whole is one part.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from aspen_jax import forks
from aspen_jax.errors import AspenError
from aspen_jax.frontend import loops, user_code
from aspen_jax.frontend.left_to_xla import REASONS
from aspen_jax.frontend.partition import Converted, Fallback, Tileable, partition
from aspen_jax.ir.dtypes import DTYPE_NUMBERS
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ir.view import MAX_RANK
from aspen_jax.ops import CONVERTERS, masks
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.converters import Equation, Unsupported
from aspen_jax.ops.elementwise import fill
from aspen_jax.ops.family import MAX_EXTENT

# Equations whose inputs are all known when tracing are folded up to this size of result; larger ones are computed in each call.
# A constant is copied into each executable, so one that takes little to compute is not worth as many bytes.
_LARGEST_FOLD_BYTES = 1 << 16
_LARGEST_TABLE_BYTES = 1 << 20

# So many equations behind each other wait for a reader; there is one call of a function for each.
_MOST_DEFERRED = 100

# What costs no more to compute from positions (`iota`), inside of what reads it, than to read: masks, ramps, one-hot rows.
# Other equations take such values as constants.
_CHEAP = frozenset({
    "abs", "add", "and", "broadcast_in_dim", "ceil", "clamp", "convert_element_type", "copy", "eq", "floor", "ge",
    "gt", "iota", "le", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "reshape", "rev", "select_n", "sign", "slice",
    "squeeze", "stop_gradient", "sub", "transpose", "xor",
})  # fmt: skip

# What selects where an operand is a mask.
_OF_MASKS = frozenset({"mul", "div"})

# Stands for dtypes that numpy does not have (PRNG keys): they fit no kernel, which is all that matters here.
_OPAQUE = np.dtype(object)

# Primitives that only call a jaxpr: inlined. (parameter that holds the jaxpr)
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",  # closed_call's name in JAX 0.12
    "core_call": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_vmap_call": "call",
    "composite": "jaxpr",
    "aspen_call": "call_jaxpr",
}


Refuses = Callable[[Op], str | None]


def refuses_none(op: Op) -> None:
    """Accept every op, as a device does that has a kernel for each."""
    del op


# What jax.shard_map inserts to say over which mesh axes a value varies; they compute nothing and bind only inside it.
_CASTS = ("pvary", "pcast")


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """A converted jaxpr.

    Attributes:
        inputs: the values of the jaxpr's arguments.
        constants: values known when tracing.
        steps: parts and fallbacks in an order in which they can run.
        outputs: what the function returns; arrays are outputs known when tracing.
        masks: the values that are bools converted to numbers; a product with one selects.
    """

    inputs: tuple[Value, ...]
    constants: tuple[tuple[Value, np.ndarray], ...]
    steps: tuple[Tileable | Fallback, ...]
    outputs: tuple[Value | np.ndarray, ...]
    masks: frozenset[Value]

    @property
    def parts(self) -> tuple[Program, ...]:
        """The tileable parts."""
        return tuple(step.program for step in self.steps if isinstance(step, Tileable))

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """The equations left to XLA."""
        return tuple(step for step in self.steps if isinstance(step, Fallback))


def trace(jaxpr: core.ClosedJaxpr, refuses: Refuses = refuses_none) -> Trace:
    """Convert a jaxpr to tileable parts and fallbacks.

    Args:
        jaxpr: the function.
        refuses: says why the device has no kernel for an op, or None where it has.
    """
    converter = _Converter(refuses)
    inputs = tuple(Value(*_array_type(var.aval)) for var in jaxpr.jaxpr.invars)
    returned = converter.inline(jaxpr.jaxpr, jaxpr.consts, inputs, scope="", line="")
    outputs = [converter.settled(item, array=False) for item in returned]
    constants = tuple(converter.build.constants)
    steps = tuple(partition(converter.items, constants, outputs))
    written = (op.output for item in converter.items if isinstance(item, Converted) for op in item.ops)
    found = frozenset(value for value in written if masks.mask_of(converter.build, Operand.whole(value)) is not None)
    return Trace(inputs, constants, steps, tuple(outputs), found)


def _array_type(aval: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of an abstract array."""
    opaque = jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)
    return tuple(aval.shape), _OPAQUE if opaque else np.dtype(aval.dtype)


def held(aval: Any) -> Value:
    """A value for an array.

    Raises:
        Unsupported: tiles cannot hold it.
    """
    shape, dtype = _array_type(aval)
    if dtype not in DTYPE_NUMBERS:
        raise Unsupported(f"tiles hold no {aval.dtype}")
    _check_shape(shape)
    return Value(shape, dtype)


@dataclasses.dataclass(eq=False)
class _Deferred:
    """A value known when tracing that depends on positions: computed by an op, or held by an array, once a reader asks for it."""

    equation: core.JaxprEqn
    inputs: tuple[_Known, ...]
    scope: str
    source: str
    value: Value | None = None
    array: np.ndarray | None = None
    is_evaluated: bool = False  # `array` is what came of it, None where it is too large

    @forks.cached_property
    def depth(self) -> int:
        """How many of these stand behind each other."""
        return 1 + max((item.depth for item in self.inputs if isinstance(item, _Deferred)), default=0)


_Known = np.ndarray | _Deferred
_Item = Value | _Known


class _Converter:
    """Walks equations; an environment maps each variable to a Value, or to what is known of it when tracing."""

    def __init__(self, refuses: Refuses, build: Builder | None = None) -> None:
        self.build = build or Builder()
        self._refuses = refuses
        self.items: list[Converted | Fallback] = []
        self._known: dict[int, Value] = {}

    def inline(self, jaxpr: core.Jaxpr, consts: Sequence[Any], arguments: Sequence[_Item], scope: str, line: str) -> list[_Item]:
        """Convert a jaxpr called under the named scope `scope` from the user's source line `line`."""
        environment: dict[core.Var, _Item] = {
            var: _known_array(value, var.aval) for var, value in zip(jaxpr.constvars, consts, strict=True)
        }
        environment.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> _Item:
            return _known_array(atom.val, atom.aval) if isinstance(atom, core.Literal) else environment[atom]

        function = jaxpr.debug_info if line else None
        for equation in jaxpr.eqns:
            inputs = [read(atom) for atom in equation.invars]
            name = "/".join(part for part in (scope, str(equation.source_info.name_stack)) if part)
            source = user_code.line_of(equation.source_info.traceback, function) or line
            called = None if _spreads(equation) else called_jaxpr(equation)
            if called is not None:
                outputs = self.inline(called.jaxpr, called.consts, inputs, name, source)
            elif equation.primitive.name in _CASTS:
                outputs = inputs
            elif equation.primitive.name == loops.SCAN:
                outputs = self._scan(equation, inputs, name, source)
            else:
                outputs = self._fold(equation, inputs, name, source) or self._convert(equation, inputs, name, source)
            environment.update(zip(equation.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _fold(self, equation: core.JaxprEqn, inputs: Sequence[_Item], scope: str, source: str) -> Sequence[_Known] | None:
        """What an equation gives whose inputs are known, where that is small and has no effect."""
        known = tuple(item for item in inputs if not isinstance(item, Value))
        if equation.effects or len(known) < len(inputs):
            return None
        primitive = equation.primitive.name
        if primitive not in CONVERTERS:  # others may be loops that run for long
            return None
        if any(_array_type(var.aval)[1] == _OPAQUE for var in equation.outvars):
            return None
        behind = [item.depth for item in known if isinstance(item, _Deferred)]
        if primitive == "iota" or (primitive in _CHEAP and behind and max(behind) < _MOST_DEFERRED):
            return [_Deferred(equation, known, scope, source)]
        return _evaluated(equation, known, _LARGEST_FOLD_BYTES if primitive in _CHEAP else _LARGEST_TABLE_BYTES)

    def settled(self, item: _Item, array: bool) -> Value | np.ndarray:
        """The item as an array if it is known when tracing and `array`, else as a value."""
        if not isinstance(item, _Deferred):
            return item
        known = _array(item) if array else None
        if known is not None:
            return known
        if item.value is None:
            (item.value,) = self._convert(item.equation, item.inputs, item.scope, item.source)
        return item.value

    def _convert(self, equation: core.JaxprEqn, items: Sequence[_Item], scope: str, source: str) -> list[Value]:
        primitive = equation.primitive.name
        is_read = primitive in _CHEAP or (primitive in _OF_MASKS and any(map(_is_mask, items)))
        inputs = [self.settled(item, array=not is_read) for item in items]
        name = f"{scope}/{primitive}" if scope else primitive
        self.build.name, self.build.source, self.build.exact = name, source, _is_exact(equation.params.get("precision"))
        written = len(self.build.ops)
        body = None
        try:
            converter = CONVERTERS.get(primitive)
            if converter is None and primitive not in (loops.SCAN, loops.WHILE):
                raise Unsupported(f"no op for {primitive}: {REASONS.get(primitive, 'aspen_jax does not know this primitive')}")
            if equation.effects:
                raise Unsupported(f"{primitive} has side effects")
            outputs = [_array_type(var.aval) for var in equation.outvars]
            arrays = [item if isinstance(item, np.ndarray) else None for item in inputs]
            for shape, dtype in outputs + [(item.shape, item.dtype) for item in inputs]:
                if dtype not in DTYPE_NUMBERS:
                    raise Unsupported(f"tiles hold no {dtype}")
                _check_shape(shape)
            if converter is None:
                result, body = self._loop(equation, inputs)
            else:
                operands = [self._operand(item) for item in inputs]
                result = converter(self.build, Equation(primitive, equation.params, outputs, arrays), *operands)
            results = [result] if isinstance(result, Operand) else list(result)
            values = [self.build.copy(operand).value for operand in results]
            if [(value.shape, value.dtype) for value in values] != outputs:
                made = ", ".join(f"{value.dtype}{list(value.shape)}" for value in values)
                wanted = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in outputs)
                raise AspenError(f"the converter of {primitive} makes {made}, but should make {wanted}; mend the converter")
            for op in self.build.ops[written:]:
                for shape in (op.output.shape, *(operand.shape for operand in op.inputs)):
                    _check_shape(shape)
                reason = self._refuses(op)
                if reason is not None:
                    raise Unsupported(reason)
        except Unsupported as error:
            del self.build.ops[written:]
            values = [Value(*_array_type(var.aval)) for var in equation.outvars]
            self.items.append(Fallback(equation, tuple(inputs), tuple(values), str(error), name, source))
            return list(values)
        self.items.append(Converted(equation, tuple(inputs), tuple(values), tuple(self.build.ops[written:]), name, source, body))
        return list(values)

    def _scan(self, equation: core.JaxprEqn, inputs: Sequence[_Item], name: str, source: str) -> list[_Item]:
        """Convert a scan: as one op, with products before it where that can be, or as an equation that stays with XLA."""
        moved = loops.with_products_outside(equation)
        if moved is None:
            return list(self._convert(equation, inputs, name, source))
        inputs = [self.settled(item, array=True) for item in inputs]  # what is written for them now stays
        num_items, num_ops, num_constants = len(self.items), len(self.build.ops), len(self.build.constants)
        known = dict(self._known)
        outputs = self.inline(moved.jaxpr, moved.consts, inputs, name, source)
        if not any(isinstance(item, Fallback) for item in self.items[num_items:]):
            return outputs
        del self.items[num_items:], self.build.ops[num_ops:], self.build.constants[num_constants:]
        self._known = known
        return list(self._convert(equation, inputs, name, source))

    def _loop(self, equation: core.JaxprEqn, inputs: Sequence[Value | np.ndarray]) -> tuple[Sequence[Operand], Tileable]:
        """Write a loop as one op.

        Raises:
            Unsupported: XLA has to run it, or some of it.
        """
        params = equation.params
        operands = [item if isinstance(item, np.ndarray) else self._operand(item) for item in inputs]
        if equation.primitive.name == loops.SCAN:
            body = params["jaxpr"]

            def turn(converter: _Converter, arguments: Sequence[_Item], scope: str, line: str) -> list[_Item]:
                return converter.inline(body.jaxpr, body.consts, arguments, scope, line)

            types = [var.aval for var in body.jaxpr.invars]
            return loops.scan(equation, operands, self.build, functools.partial(self._body, turn, types))

        condition, body = params["cond_jaxpr"], params["body_jaxpr"]
        if condition.out_avals[0].shape:
            raise Unsupported("each entry of a batch has turns of its own")
        of_condition, constants = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

        def turn_and_condition(converter: _Converter, arguments: Sequence[_Item], scope: str, line: str) -> list[_Item]:
            given = [*arguments[of_condition:constants], *arguments[constants + 1 :]]
            carries = converter.inline(body.jaxpr, body.consts, given, scope, line)
            given = [*arguments[:of_condition], *carries]
            return [*converter.inline(condition.jaxpr, condition.consts, given, scope, line), *carries]

        types = [var.aval for var in (*condition.jaxpr.invars[:of_condition], *body.jaxpr.invars)]
        types.insert(constants, condition.out_avals[0])
        given = [*inputs[:of_condition], *inputs[constants:]]
        first = _Converter(self._refuses, self.build)
        (begun,) = first.inline(condition.jaxpr, condition.consts, given, self.build.name, self.build.source)
        is_begun = first._operand(first.settled(begun, array=False))
        first.refuse_fallbacks()
        given = [*operands[:constants], is_begun, *operands[constants:]]
        return loops.while_loop(equation, given, self.build, functools.partial(self._body, turn_and_condition, types))

    def refuse_fallbacks(self) -> None:
        """Say that a loop is no op where XLA has to run something of it.

        Raises:
            Unsupported: it has.
        """
        for item in self.items:
            if isinstance(item, Fallback):
                raise Unsupported(f"its body has what XLA runs: {item.reason}")

    def _body(self, inline: Callable[..., list[_Item]], types: Sequence[Any], known: loops.Known) -> Tileable:
        """The body of a loop.

        Args:
            inline: `inline(converter, arguments, scope, line)` converts it.
            types: of its arguments.
            known: the arguments that are known when tracing.

        Raises:
            Unsupported: XLA has to run some of it.
        """
        inner = _Converter(self._refuses)
        arguments = [held(aval) if item is None else item for aval, item in zip(types, known, strict=True)]
        returned = inline(inner, arguments, self.build.name, self.build.source)
        outputs = [inner._operand(inner.settled(item, array=False)) for item in returned]
        inner.refuse_fallbacks()
        inputs = tuple(item for item in arguments if isinstance(item, Value))
        program = Program(inputs, tuple(inner.build.constants), tuple(inner.build.ops), tuple(outputs)).pruned()
        return Tileable(program, tuple(item for item in inner.items if isinstance(item, Converted)))

    def _operand(self, item: Value | np.ndarray) -> Operand:
        if isinstance(item, Value):
            return Operand.whole(item)
        if item.ndim == 0:
            return fill(self.build, item, ())
        if id(item) not in self._known:
            self._known[id(item)] = self.build.constant(item).value
        return Operand.whole(self._known[id(item)])


def _check_shape(shape: Sequence[int]) -> None:
    """Refuses what the engine would refuse (`kMaxRank` and the bounds of boxes in engine/kernel.h).

    Raises:
        Unsupported: the array has too many dimensions, or too many elements along one.
    """
    if len(shape) > MAX_RANK:
        raise Unsupported(f"an array of {len(shape)} dimensions; tiles have up to {MAX_RANK}")
    if max(shape, default=0) > MAX_EXTENT:
        raise Unsupported(f"a dimension of {max(shape)} elements; boxes of tiles reach up to {MAX_EXTENT}")


def _array(item: _Known) -> np.ndarray | None:
    """The array of a known value; None where it is too large to be kept as one."""
    if not isinstance(item, _Deferred):
        return item
    if not item.is_evaluated:
        (item.array,) = _evaluated(item.equation, item.inputs, _LARGEST_TABLE_BYTES) or (None,)
        item.is_evaluated = True
    return item.array


def _is_mask(item: _Item) -> bool:
    """Whether a known value is bools that depend on positions, converted to numbers."""
    while isinstance(item, _Deferred):
        if item.equation.primitive.name == "convert_element_type":
            (source,), (target,) = item.equation.invars, item.equation.outvars
            return _array_type(source.aval)[1] == np.bool_ and _array_type(target.aval)[1].name in masks.DTYPES
        if item.equation.primitive.name not in ("reshape", "squeeze", "copy", "stop_gradient"):
            return False
        (item, *_) = item.inputs
    return False


def _evaluated(equation: core.JaxprEqn, inputs: Sequence[_Known], limit: int) -> list[np.ndarray] | None:
    """What an equation gives; None where that, or what it is computed from, has too many bytes."""
    outputs = [_array_type(var.aval) for var in equation.outvars]
    if sum(math.prod(shape) * dtype.itemsize for shape, dtype in outputs) > limit:
        return None
    arrays = [_array(item) for item in inputs]
    if any(array is None for array in arrays):
        return None
    # What is not a number here may be masked later: only the function's own results are the user's.
    # A mesh may have other types of axes where the equation was traced than where this is called.
    # Constants are the program's own, so moving them is no transfer of the user's.
    own = (jax.debug_nans(False), jax.debug_infs(False), jax.transfer_guard("allow"))
    with equation.ctx.manager, jax.ensure_compile_time_eval(), own[0], own[1], own[2]:
        mesh = jax.sharding.get_abstract_mesh()
        if 0 < len(mesh.manual_axes) < len(mesh.axis_names):
            return None  # outside of its `jax.shard_map`, JAX cannot run what is manual along some axes alone
        results = equation.primitive.bind(*arrays, **equation.params)
    whole = [_whole_array(item) for item in (results if equation.primitive.multiple_results else [results])]
    if equation.primitive.name in _OF_MASKS:
        (result,) = whole
        for item, array in zip(inputs[: 1 if equation.primitive.name == "div" else 2], arrays, strict=False):
            if _is_mask(item) and result is not None and array is not None and array.shape == result.shape:
                result = np.where(array != 0, result, np.zeros((), result.dtype))
        whole = [result]
    return None if any(array is None for array in whole) else [array for array in whole if array is not None]


def _known_array(value: Any, aval: Any) -> np.ndarray | Any:
    """A literal or closed-over constant as a numpy array; PRNG keys stay as they are and fit no kernel."""
    _, dtype = _array_type(aval)
    return value if dtype == _OPAQUE else np.asarray(value, dtype)


def called_jaxpr(equation: core.JaxprEqn) -> core.ClosedJaxpr | None:
    """The jaxpr of an equation that does nothing but call it, or None."""
    parameter = _CALLS.get(equation.primitive.name)
    jaxpr = equation.params.get(parameter) if parameter else None
    if isinstance(jaxpr, core.ClosedJaxpr):  # asked first: newer versions of JAX make it a kind of Jaxpr
        return jaxpr
    if isinstance(jaxpr, core.Jaxpr) and not jaxpr.constvars:
        return core.ClosedJaxpr(jaxpr, ())
    return None


def _spreads(equation: core.JaxprEqn) -> bool:
    """Whether a call says how several devices share its arguments or results, which inlined it would say no more."""
    shardings = (*equation.params.get("in_shardings", ()), *equation.params.get("out_shardings", ()))
    return any(isinstance(item, jax.sharding.Sharding) and item.num_devices > 1 for item in shardings)


def _whole_array(item: Any) -> np.ndarray | None:
    """A concrete result; None where this process does not have the whole of it, as under an explicit mesh of several."""
    if not hasattr(item, "is_fully_replicated"):  # an array of numpy's, which constants may stay
        return np.asarray(item)
    if item.is_fully_replicated:
        return np.asarray(item.addressable_data(0))
    return np.asarray(item) if item.is_fully_addressable else None


def _is_exact(precision: Any) -> bool:
    """Whether a `precision` parameter asks for more than the default."""
    each = precision if isinstance(precision, tuple) else (precision,)
    return any(item not in (None, jax.lax.Precision.DEFAULT) for item in each)

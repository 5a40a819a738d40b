"""How many columns of attention's scores can count: what a causal mask leaves.

Nothing is matched here either. Whatever the row program is made of (scale, masks, biases, softmax), it is computed for scores of
which only a bound is known, with every mask and bias that follows from constants alone: bounds from below and from above for each
element. A column counts for nothing where it cannot be a row's maximum, adds exactly zero to its sums and gets exactly zero as
its weight. Rows that are masked as a whole have a maximum that any column can be, so that there all of them count.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from aspen_jax.ir.program import Op, Operand, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import BlockProgram
from aspen_jax.ops.opcodes import OPCODES, lane_of
from aspen_jax.ops.row_program import NUMBER, ROW, Stage
from aspen_jax.ops.windows import MAX, SUM

# Binary exponents of the largest score that may be assumed, the best first: masks that are added are often -1e9 or -1e4.
_EXPONENTS = (24, 12)

# Larger masks are not looked into: it takes about 100 ns an element.
_MOST_ELEMENTS = 1 << 22

# e^x is zero in float32 from -104 on.
_ZERO_EXPONENT = -120.0


class Bounds(NamedTuple):
    """Float64 bounds of a register, broadcastable to the scores' shape; "?" as the lane: both are the bits of an int32."""

    lane: str
    low: np.ndarray
    high: np.ndarray


class _Unknown(Exception):
    """An instruction without a rule."""


def reach_of(scores: Op, rows: Op, place: int, values: Mapping[Value, np.ndarray | Op]) -> tuple[int, int]:
    """Row r has no other weights than exact zeros from column r + reach on, as long as no score exceeds 2**exponent.

    Args:
        scores: the product that makes them.
        rows: what is computed along their last axis.
        place: which input of `rows` they are.
        values: constants, and the ops that make other values.

    Returns:
        reach, at most the length of a row, and exponent.
    """
    *_, count, length = scores.output.shape
    for exponent in _EXPONENTS:
        try:
            with np.errstate(all="ignore"):
                needed = _needed(scores, rows, place, values, 2.0**exponent)
        except _Unknown:
            break
        needed = needed.any(axis=tuple(range(needed.ndim - 2)))
        needed = np.broadcast_to(needed, (count, length))
        ends = np.where(needed.any(axis=1), length - needed[:, ::-1].argmax(axis=1), length)
        reach = max(int((ends - np.arange(count)).max()), 1)
        if reach < length:
            return reach, exponent
    return max(length, 1), 0


def _needed(scores: Op, rows: Op, place: int, values: Mapping[Value, np.ndarray | Op], most: float) -> np.ndarray:
    rank = len(scores.output.shape)
    whole = np.full((1,) * rank, most)
    known = [Bounds("f", -whole, whole)]
    if scores.program is not None:
        known = [_computed(scores.program, [*known, *(_bounds(item, values) for item in scores.extra_inputs)], "f")]
    registers = [known[0] if index == place else _bounds(item, values) for index, item in enumerate(rows.inputs)]
    needed = np.zeros((1,) * rank, bool)
    stages = rows.attrs.rows.stages
    for stage in stages:
        lane = lane_of(stage.dtype) or ""
        bounds = _computed(stage.program, registers, lane)
        if stage.kind == MAX:
            least = bounds.low.max(axis=-1, keepdims=True)
            margin = 1e-3 * (np.abs(bounds.high) + np.abs(least)) - _ZERO_EXPONENT
            needed = needed | ~((bounds.high <= least - margin) & np.isfinite(least))
            bounds = Bounds(lane, least, bounds.high.max(axis=-1, keepdims=True))
        elif stage.kind == SUM:
            needed = needed | (bounds.low != 0) | (bounds.high != 0)
            if not _is_softmax_sum(stage, stages, len(rows.inputs)):
                raise _Unknown
            # The largest element's part is e^0.
            bounds = Bounds(lane, np.ones((1,) * rank), np.full((1,) * rank, float(rows.output.shape[-1])))
        elif stage.kind not in (ROW, NUMBER):
            raise _Unknown
        registers.append(bounds)
    return needed | (registers[-1].low != 0) | (registers[-1].high != 0)


def _is_softmax_sum(stage: Stage, stages: Sequence[Stage], num_inputs: int) -> bool:
    """Whether a sum is of e^(x - max(x))."""

    def copied(index: int) -> int:
        """The register that a stage hands through; -1: none."""
        program = stages[index - num_inputs].program if index >= num_inputs else None
        return program.result if program is not None and not program.instructions and program.result < program.num_inputs else -1

    index = stages.index(stage) + num_inputs
    if copied(index) < num_inputs:
        return False
    program = stages[copied(index) - num_inputs].program
    if program.constants or [item.opcode for item in program.instructions] != ["sub_f", "exp_f"]:
        return False
    (_, (x, most)), (_, (difference,)) = program.instructions
    of_rows = most >= num_inputs and stages[most - num_inputs].kind == MAX
    return of_rows and difference == program.num_inputs == program.result - 1 and copied(most) == x


def _bounds(operand: Operand, values: Mapping[Value, np.ndarray | Op]) -> Bounds:
    """Bounds of what an operand shows, one element long where it repeats itself; infinite where they depend on inputs."""
    view = dataclasses.replace(
        operand.view, dims=tuple(dim._replace(extent=1) if dim.source < 0 else dim for dim in operand.view.dims)
    )
    lane = lane_of(operand.dtype)
    if lane is None:
        raise _Unknown
    source = values.get(operand.value)
    if operand.value.size <= _MOST_ELEMENTS and isinstance(source, np.ndarray):
        shown = view.gather(source).astype(np.float64)
        return Bounds(lane, shown, shown)
    if operand.value.size <= _MOST_ELEMENTS and isinstance(source, Op) and source.family is BLOCK and source.program is not None:
        bounds = _computed(source.program, [_bounds(item, values) for item in source.inputs], lane)
        low, high = (np.broadcast_to(item, source.output.shape) for item in (bounds.low, bounds.high))
        return Bounds(lane, view.gather(np.ascontiguousarray(low)), view.gather(np.ascontiguousarray(high)))
    one = np.ones((1,) * len(operand.shape))
    return Bounds(lane, one * (0.0 if lane == "b" else -np.inf), one * (1.0 if lane == "b" else np.inf))


def _computed(program: BlockProgram, inputs: Sequence[Bounds], lane: str) -> Bounds:
    """Bounds of a program's result."""
    rank = max((item.low.ndim for item in inputs), default=0)
    bits = (np.full((1,) * rank, bits, np.int32) for bits in program.constants)
    registers = [*inputs, *(Bounds("?", item, item) for item in bits)]
    for opcode, args in program.instructions:
        lanes, result = OPCODES[opcode].lanes.split(">")
        read = [_read(registers[arg], own) for arg, own in zip(args, lanes, strict=True)]
        if opcode == "copy":
            registers.append(read[0])
        elif opcode == "select":
            registers.append(_selected(*read))
        elif opcode in _RULES:
            low, high = _RULES[opcode](*(item[1:] for item in read))
            limit = 2.0**31
            if result == "i" and not (np.all(low >= -limit) and np.all(high < limit)):
                raise _Unknown
            registers.append(Bounds(result, low, high))
        else:
            raise _Unknown
    return _read(registers[program.result], lane)


def _read(register: Bounds, lane: str) -> Bounds:
    if register.lane != "?" or lane == "?":
        return register
    bits = register.low
    known = (bits != 0 if lane == "b" else bits.view(np.float32) if lane == "f" else bits).astype(np.float64)
    return Bounds(lane, known, known)


def _selected(condition: Bounds, yes: Bounds, no: Bounds) -> Bounds:
    lane = yes.lane if yes.lane != "?" else no.lane
    yes, no = _read(yes, lane), _read(no, lane)
    if lane == "?" and not np.array_equal(condition.low, condition.high):
        raise _Unknown
    low = np.where(condition.low == 1, yes.low, np.where(condition.high == 0, no.low, np.minimum(yes.low, no.low)))
    high = np.where(condition.low == 1, yes.high, np.where(condition.high == 0, no.high, np.maximum(yes.high, no.high)))
    return Bounds(lane, low, high)


_Pair = tuple[np.ndarray, np.ndarray]


def _rising(function: Callable[..., np.ndarray]) -> Callable[..., _Pair]:
    """A function that rises with each argument."""
    return lambda *args: (function(*(low for low, _ in args)), function(*(high for _, high in args)))


def _corners(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[_Pair, _Pair], _Pair]:
    """A function of two arguments that is monotonous in each, anything where it is not defined."""

    def rule(a: _Pair, b: _Pair) -> _Pair:
        corners = [function(x, y) for x in a for y in b]
        undefined = np.isnan(sum(corners))
        low, high = np.minimum.reduce(np.broadcast_arrays(*corners)), np.maximum.reduce(np.broadcast_arrays(*corners))
        return np.where(undefined, -np.inf, low), np.where(undefined, np.inf, high)

    return rule


def _minus(a: _Pair, b: _Pair) -> _Pair:
    return a[0] - b[1], a[1] - b[0]


def _divided(a: _Pair, b: _Pair) -> _Pair:
    low, high = _corners(np.divide)(a, b)
    undefined = (b[0] <= 0) & (b[1] >= 0)
    return np.where(undefined, -np.inf, low), np.where(undefined, np.inf, high)


def _exp(a: _Pair) -> _Pair:
    low, high = (np.where(x < _ZERO_EXPONENT, 0.0, np.exp(x)) for x in a)
    return low, high


def _less(a: _Pair, b: _Pair, or_equal: bool) -> _Pair:
    # Written so that what is not known to be false may be true.
    surely, never = (operator.le, operator.gt) if or_equal else (operator.lt, operator.ge)
    return surely(a[1], b[0]).astype(float), 1.0 - never(a[0], b[1])


def _equal(a: _Pair, b: _Pair) -> _Pair:
    surely = (a[0] == a[1]) & (b[0] == b[1]) & (a[0] == b[0])
    return surely.astype(float), 1.0 - ((a[0] > b[1]) | (b[0] > a[1]))


def _not(a: _Pair) -> _Pair:
    return 1 - a[1], 1 - a[0]


_times = _corners(np.multiply)

_RULES: dict[str, Callable[..., _Pair]] = {
    "neg_f": lambda a: (-a[1], -a[0]),
    "fma_f": lambda a, b, c: _rising(np.add)(_times(a, b), c),
    "div_f": _divided,
    "exp_f": _exp,
    "tanh_f": _rising(np.tanh),
    "as_bf16_f": _rising(lambda x: x.astype(jnp.bfloat16).astype(np.float64)),
    "as_f16_f": _rising(lambda x: x.astype(np.float16).astype(np.float64)),
    "relu_f": _rising(lambda x: np.maximum(x, 0)),
    "and_b": _rising(np.minimum),
    "or_b": _rising(np.maximum),
    "not_b": _not,
    "f_from_i": lambda a: a,
    "f_from_b": lambda a: a,
    "i_from_b": lambda a: a,
}
for _lane in "fi":
    _RULES |= {
        f"add_{_lane}": _rising(np.add),
        f"sub_{_lane}": _minus,
        f"mul_{_lane}": _times,
        f"max_{_lane}": _rising(np.maximum),
        f"min_{_lane}": _rising(np.minimum),
        f"lt_{_lane}": lambda a, b: _less(a, b, False),
        f"le_{_lane}": lambda a, b: _less(a, b, True),
        f"gt_{_lane}": lambda a, b: _less(b, a, False),
        f"ge_{_lane}": lambda a, b: _less(b, a, True),
        f"eq_{_lane}": _equal,
        f"ne_{_lane}": lambda a, b: _not(_equal(a, b)),
    }

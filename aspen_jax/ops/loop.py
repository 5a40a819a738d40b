"""A loop in one tile: a program that runs turn after turn on one worker, whose cache keeps what turns hand on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aspen_jax import forks
from aspen_jax.ir.dtypes import DTYPE_NUMBERS, DTYPES
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ir.view import MAX_RANK, View
from aspen_jax.ops.attrs import Attrs, Words
from aspen_jax.ops.family import FAMILIES, MAX_EXTENT, OpFamily, Work

if TYPE_CHECKING:
    import jax

# The kernels that are no part of a loop: they hold parts themselves.
_OF_PARTS = ("loop", "stack", "transposed", "partial_reduce")

MOST_SCRATCH = 1 << 26
"""Bytes of the values that a turn computes."""


@dataclasses.dataclass(frozen=True, eq=False)
class LoopAttrs(Attrs):
    """Attributes of loop; equal where the words are.

    Attributes:
        turns: how many; 0 where nobody knows.
        is_reverse: whether the first turn reads and writes the last entries.
        is_while: whether there is a turn as long as the first carry, a bool, is true. Then nothing has an entry for each turn.
        num_constants: how many of the op's inputs are the same in each turn.
        num_carries: how many of the next inputs are what the first turn gets and each turn hands on.
        body: a turn. Its inputs are the constants, the carries, and an entry of each further input of the op. Its outputs are the
            carries of the next turn, and an entry of each further output of the op. Each is a value of its own that an op writes.
            Constants of its own it has before the passes alone (passes/loops.py).
        shared_axes: for each op of the body, along which axis of its output idle workers may share it; -1 where one worker
            computes it.
        shared_units: in multiples of how many indices; 0 there.
    """

    turns: int
    is_reverse: bool
    is_while: bool
    num_constants: int
    num_carries: int
    body: Program
    shared_axes: tuple[int, ...] = ()
    shared_units: tuple[int, ...] = ()

    def __str__(self) -> str:
        kernels = dict.fromkeys(op.family.name for op in self.body.ops)
        turns = "turns" if self.is_while else f"{self.turns} turns"
        shared = ", shared by idle workers" if any(self.shared_units) else ""
        return f"({turns} of {', '.join(kernels)}{shared})"

    def parts(self) -> Iterator[tuple[Op, int, int]]:
        """The ops of a turn, each with the axis along which it is shared, or -1, and in multiples of how many."""
        ops = self.body.ops
        return zip(ops, self.shared_axes or [-1] * len(ops), self.shared_units or [0] * len(ops), strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoopAttrs) and self._words == other._words

    def __hash__(self) -> int:
        return hash(self._words)

    @forks.cached_property
    def _words(self) -> tuple[int, ...]:
        return tuple(self._written())

    def _written(self) -> Iterator[int]:
        body = self.body
        numbers: dict[Value, int] = {}
        given = (*(value for value, _ in body.constants), *body.inputs)
        flags = int(self.is_reverse), int(self.is_while)
        yield from (self.turns, *flags, self.num_constants, self.num_carries, len(given))
        for value in given:
            numbers[value] = len(numbers)
            yield from _words_of_value(value)
        yield len(body.ops)
        for op, axis, unit in self.parts():
            letters, words = op.family.kernel.encode("ascii"), op.family.params(op)
            yield from (len(letters), *letters, len(words), *words, len(op.inputs))
            for operand in op.inputs:
                view = operand.view
                yield from (numbers[operand.value], view.offset(), view.rank, *view.shape, view.rank, *view.strides())
            yield len(op.outputs)
            for value in op.outputs:
                numbers[value] = len(numbers)
                yield from _words_of_value(value)
            yield from (axis + 1, unit)
        yield len(body.outputs)
        for operand in body.outputs:
            yield from (numbers[operand.value], len(operand.shape), *operand.shape)

    def to_words(self) -> list[int]:
        return list(self._words)

    @classmethod
    def from_words(cls, words: Words) -> LoopAttrs:
        turns, is_reverse, is_while, constants, carries = (words.integer() for _ in range(5))
        values = [_value_from(words) for _ in range(_count(words))]
        inputs = tuple(values)
        ops, axes, units = [], [], []
        for _ in range(_count(words)):
            ops.append(_op_from(words, values))
            values += ops[-1].outputs
            axes.append(words.integer() - 1)
            units.append(words.integer())
        outputs = tuple(_result_from(words, values) for _ in range(_count(words)))
        body = Program(inputs, (), tuple(ops), outputs)
        return cls(turns, bool(is_reverse), bool(is_while), constants, carries, body, tuple(axes), tuple(units))


def _words_of_value(value: Value) -> Iterator[int]:
    yield from (DTYPE_NUMBERS[value.dtype], len(value.shape), *value.shape)


def _count(words: Words) -> int:
    count = words.integer()
    if not 0 <= count <= 1 << 16:
        raise ValueError(f"a loop with {count} values or ops")
    return count


def _value_from(words: Words) -> Value:
    number, shape = words.integer(), words.list()
    if not 0 <= number < len(DTYPES):
        raise ValueError(f"there is no dtype {number}")
    _check_shape(shape)
    return Value(shape, DTYPES[number])


def _check_shape(shape: Sequence[int]) -> None:
    if len(shape) > MAX_RANK or not all(0 <= extent <= MAX_EXTENT for extent in shape):
        raise ValueError(f"a value of shape {list(shape)} in a loop")


def _known(values: Sequence[Value], number: int) -> Value:
    if not 0 <= number < len(values):
        raise ValueError(f"value {number} of a loop that has {len(values)} there")
    return values[number]


def _op_from(words: Words, values: Sequence[Value]) -> Op:
    kernel, own = words.name(), words.list()
    family = FAMILIES.get(kernel)
    if family is None or kernel in _OF_PARTS:
        raise ValueError(f"no kernel {kernel!r} can be a part of a loop")
    operands = []
    for _ in range(_count(words)):
        value, offset = _known(values, words.integer()), words.integer()
        shape, strides = words.list(), words.list()
        _check_shape(shape)
        view = View.from_flat(value.size, offset, strides, shape) if len(strides) == len(shape) else None
        if view is None:
            raise ValueError("a loop reads no view of a value")
        operands.append(Operand(value, view))
    outputs = tuple(_value_from(words) for _ in range(_count(words)))
    if not outputs:
        raise ValueError("an op of a loop has no output")
    attrs, program = family.parse(own, len(outputs))
    return Op(family, attrs, tuple(operands), outputs[0], program, further=outputs[1:])


def _result_from(words: Words, values: Sequence[Value]) -> Operand:
    value, shape = _known(values, words.integer()), words.list()
    _check_shape(shape)
    view = View.identity(value.shape).reshape(shape) if math.prod(shape) == value.size else None
    if view is None:
        raise ValueError(f"a result of a loop has shape {list(shape)}, and its value {list(value.shape)}")
    return Operand(value, view)


class Loop(OpFamily):
    """Turns of a body: carries, further[t] = body(constants, carries, inputs[t]).

    The outputs are the last carries, then `further`. One tile runs all turns, and writes outputs of any shapes whole.
    """

    name = "loop"
    kernel = "loop"
    attrs_type = LoopAttrs
    may_have_further = True
    alike_everywhere = False

    def num_main(self, op: Op) -> int:
        return len(op.inputs)

    def infer(self, attrs: LoopAttrs, inputs: Sequence[tuple[tuple[int, ...], np.dtype]]) -> tuple[tuple[int, ...], np.dtype]:
        raise ValueError("a loop's shapes are those of its body; use loop_of")

    def check(self, op: Op) -> None:
        attrs: LoopAttrs = op.attrs
        body = attrs.body
        if op.program is not None:
            raise ValueError("a loop has no epilogue")
        if not 0 <= attrs.turns <= MAX_EXTENT or attrs.num_constants < 0 or attrs.num_carries < 0:
            raise ValueError(f"a loop of {attrs.turns} turns, {attrs.num_constants} constants and {attrs.num_carries} carries")
        if attrs.is_while and (_is_not_flag(body, attrs) or len(body.outputs) != attrs.num_carries):
            raise ValueError("a loop of unknown length begins with a bool, and has no entries")
        if attrs.shared_units and not len(attrs.shared_axes) == len(attrs.shared_units) == len(body.ops):
            raise ValueError(f"a loop says of {len(attrs.shared_units)} ops how they are shared, and has {len(body.ops)}")
        for own, axis, unit in attrs.parts():
            if not -1 <= axis < len(own.output.shape) or not 0 <= unit <= MAX_EXTENT or (unit > 0) != (axis >= 0):
                raise ValueError(f"an op of a loop is shared along axis {axis} in multiples of {unit}")
        if body.constants:
            raise ValueError("the body of a loop has constants of its own; they must be inputs")
        inputs, outputs = types_of(attrs)
        if [(item.shape, item.dtype) for item in op.inputs] != inputs:
            raise ValueError("the inputs of a loop are not those of its body")
        if [(value.shape, value.dtype) for value in op.outputs] != outputs or len(set(op.outputs)) < len(op.outputs):
            raise ValueError("the outputs of a loop are not those of its body")
        carries = [(value.shape, value.dtype) for value in body.inputs[attrs.num_constants :][: attrs.num_carries]]
        if [(item.shape, item.dtype) for item in body.outputs[: attrs.num_carries]] != carries:
            raise ValueError("a loop carries other values than it gets")
        written = {value for own in body.ops for value in own.outputs}
        results = [item.value for item in body.outputs]
        is_dense = all(item.view.is_dense() for item in body.outputs)
        if not is_dense or not written.issuperset(results) or len(set(results)) < len(results):
            raise ValueError("each result of a loop's body must be a value of its own that an op writes")
        for own in body.ops:
            if own.family.kernel in _OF_PARTS:
                raise ValueError(f"no kernel {own.family.kernel!r} can be a part of a loop")
            own.family.check(own)

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        shape = op.inputs[index].shape
        return np.broadcast_to(_whole(shape), (len(boxes), len(shape), 2))

    def reads_well(self, op: Op, index: int, operand: Operand) -> bool:
        return operand.view.is_dense()

    def grain(self, op: Op) -> tuple[int, ...]:
        return tuple(max(extent, 1) for extent in op.output.shape)

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        attrs: LoopAttrs = op.attrs
        flops = sum(float(own.family.work(own, _whole(own.output.shape)[None]).flops[0]) for own in attrs.body.ops)
        moved = sum(item.value.nbytes for item in op.inputs) + sum(value.nbytes for value in op.outputs)
        return Work(np.full(len(boxes), flops * turns_of(attrs)), np.full(len(boxes), float(moved)))

    def reference(self, attrs: LoopAttrs, *inputs: jax.Array) -> jax.Array:
        raise ValueError("a loop's reference is that of its body; see ops/reference.py")


LOOP = Loop()

# Of a loop of unknown length, for estimates.
SOME_TURNS = 32


def turns_of(attrs: LoopAttrs) -> int:
    """How many turns a loop has, or may have."""
    return SOME_TURNS if attrs.is_while else attrs.turns


def _is_not_flag(body: Program, attrs: LoopAttrs) -> bool:
    first = body.inputs[attrs.num_constants : attrs.num_constants + 1]
    return len(body.inputs) != attrs.num_constants + attrs.num_carries or [(v.shape, v.dtype) for v in first] != [((), np.bool_)]


def _whole(shape: Sequence[int]) -> np.ndarray:
    """The box of all of a value."""
    return np.array([(0, extent) for extent in shape], np.int64).reshape(-1, 2)


_Type = tuple[tuple[int, ...], np.dtype]


def types_of(attrs: LoopAttrs) -> tuple[list[_Type], list[_Type]]:
    """Shapes and dtypes of a loop's inputs and of its outputs."""
    once = attrs.num_constants + attrs.num_carries

    def stacked(value: Value | Operand) -> _Type:
        return (attrs.turns, *value.shape), value.dtype

    body = attrs.body
    inputs = [(value.shape, value.dtype) for value in body.inputs[:once]] + [stacked(value) for value in body.inputs[once:]]
    carried = [(item.shape, item.dtype) for item in body.outputs[: attrs.num_carries]]
    return inputs, carried + [stacked(item) for item in body.outputs[attrs.num_carries :]]


def scratch_bytes(body: Program) -> int:
    """Bytes of what a turn computes, carries twice."""
    return sum(-(-value.nbytes // 64) * 64 for op in body.ops for value in op.outputs) * 2


def loop_of(attrs: LoopAttrs, inputs: Sequence[Operand], **about: Any) -> Op:
    """A loop over operands.

    Args:
        attrs: of the loop.
        inputs: constants, first carries, and what has an entry for each turn.
        **about: name, source and exactness of the op.
    """
    _, outputs = types_of(attrs)
    values = [Value(shape, dtype) for shape, dtype in outputs]
    return Op(LOOP, attrs, tuple(inputs), values[0], further=tuple(values[1:]), **about)


def run_in_jax(attrs: LoopAttrs, evaluate: Any, inputs: Sequence[jax.Array]) -> list[jax.Array]:
    """What a loop gives, in jax.lax.

    Args:
        attrs: of the loop.
        evaluate: `evaluate(program, *arrays)` gives the outputs of a program.
        inputs: of the op.
    """
    import jax.numpy as jnp
    from jax import lax

    constants = inputs[: attrs.num_constants]
    carries = inputs[attrs.num_constants :][: attrs.num_carries]
    entries = inputs[attrs.num_constants + attrs.num_carries :]

    def turn(carries: Sequence[Any], entries: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        results = evaluate(attrs.body, *constants, *carries, *entries)
        return list(results[: attrs.num_carries]), list(results[attrs.num_carries :])

    if attrs.is_while:
        return list(
            lax.while_loop(lambda carries: carries[0], lambda carries: turn(carries, ())[0], list(map(jnp.asarray, carries)))
        )
    last, further = lax.scan(
        turn, [jnp.asarray(item) for item in carries], tuple(entries), length=attrs.turns, reverse=attrs.is_reverse
    )
    return [*last, *further]


__all__ = ["LOOP", "MOST_SCRATCH", "Loop", "LoopAttrs", "loop_of", "run_in_jax", "scratch_bytes", "types_of"]

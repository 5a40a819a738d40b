"""The order of dimensions in which a value is best stored for those that read it.

Products and convolutions read the rows of their weights fastest where they are dense. Many libraries hold weights the other way
round (`x @ w.T`, OIHW): then each call reads in strides or copies first. Weights that are known beforehand are stored once in the
order in which they are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable
from typing import NamedTuple

import numpy as np

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ir.view import View
from aspen_jax.ops.block import BLOCK

Order = tuple[int, ...]

# The names of ops that pad what others read end so.
PADDED = "/align"


ReadIn = Callable[[Op, int], Order]
"""Of an op and the number of an input that is a weight, the order in which its dimensions are best read."""


class Arrangement(NamedTuple):
    """How an array is stored: with its dimensions in another order, and possibly in panels then (ops/matmul.py).

    Attributes:
        order: the permutation.
        summed: in that order, how many dimensions are the rows of the matrix that is stored in panels; 0: it is not.
    """

    order: Order
    summed: int = 0


def as_it_is(op: Op, index: int) -> Order:
    """An operand of an op is read in the order of its own dimensions."""
    return tuple(range(len(op.inputs[index].shape)))


def best_orders(program: Program, values: Collection[Value], read_in: ReadIn = as_it_is) -> dict[Value, Order]:
    """The permutations to store `values` in, for those that another order of dimensions suits better.

    Args:
        program: who reads them.
        values: constants, or arguments.
        read_in: of an op and the number of an input that is a weight, the order in which its dimensions are best read, the
            slowest first.
    """
    copied = copies(program)
    votes: dict[Value, dict[Order, int]] = {}
    for op in program.ops:
        for index in op.family.weight_inputs:
            operand = behind_copy(op.inputs[index], copied)
            if operand.value in values:
                order = order_of(Operand(operand.value, operand.view.transpose(read_in(op, index))))
                if order is not None:
                    votes.setdefault(operand.value, defaultdict(int))[order] += op.output.size
    best = {value: max(counts, key=lambda order: counts[order]) for value, counts in votes.items()}
    return {value: order for value, order in best.items() if order != tuple(range(len(order)))}


class Constants:
    """A program's constants, and those that a pass adds: made of one of them or several, once for all that read them so."""

    def __init__(self, program: Program):
        self._arrays = dict(program.constants)
        self._copied = copies(program)
        self._made: dict[tuple[tuple[Operand, ...], Hashable], tuple[Value, np.ndarray]] = {}

    def source(self, operand: Operand) -> Operand | None:
        """The constant that an operand reads, maybe through a copy; None where it reads none."""
        source = behind_copy(operand, self._copied)
        return source if source.value in self._arrays else None

    def stored(self, source: Operand, make: Callable[[np.ndarray], np.ndarray], form: Hashable = None) -> Operand:
        """What `make` makes of a constant; `form` tells apart what different functions make of the same one."""
        return self.stored_together((source,), make, form)

    def stored_together(self, sources: tuple[Operand, ...], make: Callable[..., np.ndarray], form: Hashable) -> Operand:
        """What `make` makes of several constants; `form` as above."""
        if (sources, form) not in self._made:
            arrays = (source.view.gather(self._arrays[source.value]) for source in sources)
            array = np.ascontiguousarray(make(*arrays))
            self._made[sources, form] = Value(array.shape, array.dtype), array
        return Operand.whole(self._made[sources, form][0])

    def all(self) -> tuple[tuple[Value, np.ndarray], ...]:
        """All constants, as a program has them."""
        return (*self._arrays.items(), *self._made.values())


def copies(program: Program) -> dict[Value, Operand]:
    """What each value that some op only copies is a copy of."""
    return {op.output: op.inputs[0] for op in program.ops if _is_copy(op)}


def behind_copy(operand: Operand, copied: dict[Value, Operand]) -> Operand:
    """What the operand reads, past a copy that was made for it."""
    return copied[operand.value] if operand.is_whole and operand.value in copied else operand


def with_known_weights(program: Program) -> Program:
    """Weights that are a view of a constant's copy, where no view of the constant shows them, read the copy as a constant."""
    constants, copied = Constants(program), copies(program)
    ops: list[Op] = []
    for op in program.ops:
        inputs = list(op.inputs)
        for index in op.family.weight_inputs:
            operand = op.inputs[index]
            source = constants.source(copied[operand.value]) if operand.value in copied else None
            # A larger copy repeats elements, which is done sooner than read.
            if operand.is_whole or source is None or operand.value.size > source.value.size:
                continue
            inputs[index] = Operand(constants.stored(source, lambda array: array).value, operand.view)
        ops.append(op if tuple(inputs) == op.inputs else op.replace(inputs=tuple(inputs)))
    return program.replace(ops=tuple(ops), constants=constants.all())


def stored(operand: Operand, value: Value, order: Order) -> Operand | None:
    """The operand as a view of `value`, which holds its value in another order; None where no view can say it."""
    view = Operand.permuted(value, order).view.compose(operand.view)
    return None if view is None else Operand(value, view)


def _is_copy(op: Op) -> bool:
    return op.family is BLOCK and op.program is not None and op.program.is_copy


def order_of(operand: Operand) -> Order | None:
    """The order of the value's dimensions in which the operand would read it from beginning to end; None where there is none."""
    shape = operand.value.shape
    strides = View.identity(shape).strides()
    walks = [
        (axis, stride, extent) for axis, (stride, extent) in enumerate(zip(operand.view.strides(), operand.shape, strict=True))
    ]
    walks = [item for item in walks if item[2] > 1]
    place: dict[int, tuple[int, int]] = {}
    for dimension, (stride, extent) in enumerate(zip(strides, shape, strict=True)):
        if extent == 1:
            place[dimension] = (-1, dimension)
            continue
        around = [axis for axis, step, count in walks if 0 < step <= stride and stride * extent <= step * count]
        if len(around) != 1:
            return None
        place[dimension] = (around[0], -stride)
    order = tuple(sorted(range(len(shape)), key=lambda dimension: place[dimension]))
    return _unless_same(order, shape)


def _unless_same(order: Order, shape: tuple[int, ...]) -> Order:
    """The identity where the permutation moves only dimensions of one element."""
    moved = [axis for axis in order if shape[axis] > 1]
    return tuple(range(len(shape))) if moved == sorted(moved) else order

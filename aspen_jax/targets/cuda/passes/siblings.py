"""Makes one product of several that multiply the same rows by known weights, such as Q, K and V of attention.

Their weights are concatenated along an axis of columns, once, when the function is traced. Each reader sees its columns of the
one output through a view, so nothing is copied. One launch reads the rows once, and has columns for more thread blocks.

What follows in the kernels must be the same program. What that reads beside the sums must be known, and is concatenated too.

Left apart are:

- Weights that are arguments. Each call would copy them, and a step of decoding reads each weight once.
- A gate beside an up projection. The epilogue of one reads the other, which makes two launches. A joined product and an
  element-wise op would be two as well, and would store more.
- Results of the function, which each lie in memory of their own.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Hashable, Sequence

import numpy as np

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ir.view import View
from aspen_jax.ops.matmul import MATMUL
from aspen_jax.passes.storage import Constants
from aspen_jax.targets.cuda.passes.split_depth import price
from aspen_jax.targets.cuda.price import Gpu

# Readers take so many bytes at once, so the columns of each product begin at a multiple of them.
_ALIGNED_BYTES = 16


def run(program: Program, machine: Gpu) -> Program:
    """Join siblings where the cost model says so."""
    return _Joiner(program, machine).joined()


@dataclasses.dataclass(frozen=True)
class _Group:
    """Siblings and the product that stands for them.

    Attributes:
        op: that product.
        parts: what each sibling wrote, as a part of what it writes.
    """

    op: Op
    parts: dict[Value, Operand]


class _Joiner:
    """Looks for siblings. Whether it pays to join them is asked once for all that are alike."""

    def __init__(self, program: Program, machine: Gpu):
        self._program, self._machine = program, machine
        self._constants = Constants(program)
        self._uses = program.uses()
        self._pays: dict[Hashable, bool] = {}

    def joined(self) -> Program:
        candidates: dict[tuple[Operand, int, *tuple[Hashable, ...]], list[Op]] = {}
        for op in self._program.ops:
            place = self._place_of_weights(op)
            if place is not None:
                key = (op.inputs[1 - place], place, op.attrs, op.program, op.exact, op.output.dtype)
                candidates.setdefault((*key, *(item.dtype for item in op.inputs)), []).append(op)
        found = [self._group(ops, key[1]) for key, ops in candidates.items() if len(ops) > 1]
        groups = [group for group in found if group is not None]
        if not groups:
            return self._program
        parts = {value: part for group in groups for value, part in group.parts.items()}
        # The rows that all of a group read are there where the first one stood.
        made = {next(iter(group.parts)): group.op for group in groups}
        ops = [made.get(op.output, op) for op in self._program.ops if op.output not in parts or op.output in made]
        ops = [op.replace(inputs=tuple(_shown(item, parts) for item in op.inputs)) for op in ops]
        return self._program.replace(ops=tuple(ops), constants=self._constants.all())

    def _place_of_weights(self, op: Op) -> int | None:
        """Which input of a product is known weights; None where it stays apart, as where the caller gets the output."""
        if op.family is not MATMUL or op.output.size == 0 or any(reader is None for reader, _ in self._uses.get(op.output, ())):
            return None
        known = [self._constants.source(item) is not None for item in op.inputs]
        return known.index(True) if any(known[:2]) and not all(known[:2]) and all(known[2:]) else None

    def _group(self, ops: Sequence[Op], place: int) -> _Group | None:
        """The one product, where input `place` is the weights; None where there is none, or it does not pay."""
        labels = (ops[0].attrs.a, ops[0].attrs.b)
        axis = _axis(ops, set(labels[place]) - set(labels[1 - place]))
        if axis is None:
            return None
        extents = [op.output.shape[axis] for op in ops]
        inner = math.prod(ops[0].output.shape[axis + 1 :]) * ops[0].output.dtype.itemsize
        if any(extent * inner % _ALIGNED_BYTES for extent in extents):
            return None
        shape = _widened(ops[0].output.shape, axis, sum(extents))
        output = Value(shape, ops[0].output.dtype)
        parts = {
            own.output: Operand(output, _columns(shape, axis, end - extent, end))
            for own, extent, end in zip(ops, extents, itertools.accumulate(extents), strict=True)
        }
        if not all(self._is_read_as_well(part, value) for value, part in parts.items()):
            return None
        inputs = list(ops[0].inputs)
        for index in (place, *range(2, len(inputs))):
            along = labels[place].index(axis) if index == place else axis
            inputs[index] = self._side_by_side([op.inputs[index] for op in ops], along)
        name = " + ".join(dict.fromkeys(op.name for op in ops))
        op = ops[0].replace(inputs=tuple(inputs), output=output, name=name)
        return _Group(op, parts) if self._does_pay(op, ops) else None

    def _side_by_side(self, operands: Sequence[Operand], axis: int) -> Operand:
        """Known operands one behind the other along an axis, without the axes that repeat what they read."""
        sources = tuple(source for item in operands if (source := self._constants.source(item)) is not None)
        assert len(sources) == len(operands), "only known operands are joined"
        rank = len(sources[0].shape)
        kept = [d for d in range(rank) if d == axis or any(source.view.strides()[d] for source in sources)]
        first = tuple(slice(None) if d in kept else 0 for d in range(rank))

        def make(*arrays: np.ndarray) -> np.ndarray:
            return np.concatenate([array[first] for array in arrays], kept.index(axis))

        stored = self._constants.stored_together(sources, make, ("side by side", axis, tuple(kept)))
        shape = _widened(sources[0].shape, axis, sum(source.shape[axis] for source in sources))
        return Operand(stored.value, stored.view.broadcast_in_dim(shape, kept))

    def _is_read_as_well(self, part: Operand, value: Value) -> bool:
        """Whether all that read a value can read it as a part of another one."""
        for reader, index in self._uses.get(value, ()):
            assert reader is not None, "results are no candidates"
            operand = _through(part, reader.inputs[index])
            if operand is None:
                return False
            is_main = index < reader.family.num_main(reader)
            if is_main and not reader.family.reads_well(reader, index, operand):
                return False
            inputs = (*reader.inputs[:index], operand, *reader.inputs[index + 1 :])
            if self._machine.has_kernel(reader) and not self._machine.has_kernel(reader.replace(inputs=inputs)):
                return False
        return True

    def _does_pay(self, op: Op, ops: Sequence[Op]) -> bool:
        views = tuple((item.dtype, item.view) for item in op.inputs)
        key = (op.attrs, views, op.output.dtype, op.program, op.exact, *(own.output.shape for own in ops))
        if key not in self._pays:
            self._pays[key] = self._machine.has_kernel(op) and price([op], self._machine) < price(ops, self._machine)
        return self._pays[key]


def _axis(ops: Sequence[Op], columns: Collection[int]) -> int | None:
    """The first of the axes of columns along which the outputs may lie side by side: all others have the same extents."""
    for axis in sorted(columns):
        if len({_widened(op.output.shape, axis, 1) for op in ops}) == 1:
            return axis
    return None


def _widened(shape: Sequence[int], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _columns(shape: Sequence[int], axis: int, start: int, end: int) -> View:
    """A view of indices [start, end) of one axis of a value."""
    starts = [start if d == axis else 0 for d in range(len(shape))]
    return View.identity(shape).slice(starts, [end if d == axis else extent for d, extent in enumerate(shape)])


def _shown(operand: Operand, parts: dict[Value, Operand]) -> Operand:
    """The operand, of a value that may have become a part of another one."""
    part = parts.get(operand.value)
    found = operand if part is None else _through(part, operand)
    assert found is not None, "a view shows it, or there would be no part"
    return found


def _through(part: Operand, operand: Operand) -> Operand | None:
    """The operand as a view of the value that has its own as a part; None where no view can say it."""
    view = part.view.compose(operand.view)
    return None if view is None else Operand(part.value, view)

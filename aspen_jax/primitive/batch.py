"""Finds out whether a program treats a batch entry by entry, and makes the program of a part of the batch.

Regions know which elements an output needs. Where the j-th of n slices of every output, along the slowest dimension, needs only
the j-th slice of some inputs and the same of all others, the batch may be cut anywhere: each device runs its own entries.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ir.view import View


@dataclasses.dataclass(frozen=True, eq=False)
class Batched:
    """A program that treats its batch entry by entry.

    Attributes:
        program: the program for the whole batch; it has no constants.
        size: entries of the batch.
        values: the values that hold a slice for each entry; all others are the same for every entry.
    """

    program: Program
    size: int
    values: frozenset[Value]

    @classmethod
    def of(cls, program: Program) -> Batched | None:
        """The batch of a program without constants; its size is the first extent of most outputs.

        None if the program treats none entry by entry.
        """
        sizes = collections.Counter(operand.shape[0] for operand in program.outputs if operand.shape and operand.shape[0] > 1)
        if not all(operand.is_whole for operand in program.outputs):
            return None
        found = (cls._of_size(program, size) for size, _ in sizes.most_common())
        return next((item for item in found if item is not None), None)

    @classmethod
    def _of_size(cls, program: Program, size: int) -> Batched | None:
        batched = {operand.value for operand in program.outputs if operand.shape and operand.shape[0] == size}
        shared = {operand.value for operand in program.outputs} - batched
        for op in reversed(program.ops):
            if op.output not in batched:
                shared.update(operand.value for operand in op.inputs)
                continue
            boxes = _slices(op.output.shape, size)
            if boxes is None or not op.family.alike_everywhere:
                return None
            for index, operand in enumerate(op.inputs):
                of_value = operand.view.region(operand.value.shape, op.family.region(op, index, boxes))
                own = _slices(operand.value.shape, size)
                if (of_value == of_value[:1]).all():
                    shared.add(operand.value)
                elif own is not None and ((own[:, :, 0] <= of_value[:, :, 0]) & (of_value[:, :, 1] <= own[:, :, 1])).all():
                    batched.add(operand.value)
                else:
                    return None
        computed = {op.output for op in program.ops}
        if shared & batched or not batched & set(program.inputs) - computed:
            return None
        return cls(program, size, frozenset(batched))

    def part(self, count: int) -> Program | None:
        """The program of one of `count` equal parts of the batch; None where a view or an op cannot be cut."""
        if self.size % count:
            return None
        new: dict[Value, Value] = {}
        for value in self.values:
            new[value] = Value(_cut(value.shape, count), value.dtype)
        ops = []
        for op in self.program.ops:
            if op.output not in self.values:
                ops.append(op)
                continue
            inputs = [self._part_of(op, index, count, new) for index in range(len(op.inputs))]
            kept = [item for item in inputs if item is not None]
            if len(kept) < len(inputs):
                return None
            part = _checked(op, op.replace(inputs=tuple(kept), output=new[op.output]))
            if part is None:
                return None
            ops.append(part)
        return self.program.replace(
            inputs=tuple(new.get(value, value) for value in self.program.inputs),
            constants=tuple(
                (new[value], np.reshape(array, -1)[: new[value].size].reshape(new[value].shape))
                if value in new
                else (value, array)
                for value, array in self.program.constants
            ),
            ops=tuple(ops),
            outputs=tuple(Operand.whole(new.get(operand.value, operand.value)) for operand in self.program.outputs),
        )

    def _part_of(self, op: Op, index: int, count: int, new: dict[Value, Value]) -> Operand | None:
        """An input of an op as a part of the batch reads it."""
        operand = op.inputs[index]
        boxes = _slices(op.output.shape, self.size)
        assert boxes is not None
        region = op.family.region(op, index, boxes)
        shape, strides, step = list(operand.shape), operand.view.strides(), 0
        for dimension, extent in enumerate(operand.shape):
            if not (region[:, dimension] == region[:1, dimension]).all():
                shape[dimension] = extent // count
                step += strides[dimension] * (extent // self.size)
        # Each part finds its entries in the same places of its own slice, which a diagonal does not.
        if step != (operand.value.size // self.size if operand.value in new else 0):
            return None
        value = new.get(operand.value, operand.value)
        view = View.from_flat(value.size, operand.view.offset(), strides, shape)
        return None if view is None else Operand(value, view)


def _checked(op: Op, part: Op) -> Op | None:
    """A part of an op with attributes for it; None where there are none with which it fits its inputs."""
    attrs = op.family.attrs_of_part(op, part)
    if attrs is None and op.attrs is not None:
        return None
    part = part.replace(attrs=attrs)
    try:
        part.family.check(part)
    except ValueError:
        return None
    return part


def slowest_axis(shape: Sequence[int]) -> int | None:
    """The first dimension that has not just one element."""
    return next((axis for axis, extent in enumerate(shape) if extent != 1), None)


def _slices(shape: Sequence[int], size: int) -> np.ndarray | None:
    """The boxes of `size` equal slices along the slowest dimension; None where they are not boxes."""
    axis = slowest_axis(shape)
    if axis is None or shape[axis] % size or 0 in shape:
        return None
    step = shape[axis] // size
    boxes = np.empty((size, len(shape), 2), np.int64)
    boxes[:, :, 0], boxes[:, :, 1] = 0, shape
    boxes[:, axis, 0] = np.arange(size) * step
    boxes[:, axis, 1] = boxes[:, axis, 0] + step
    return boxes


def _cut(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    axis = slowest_axis(shape)
    assert axis is not None
    return (*shape[:axis], shape[axis] // count, *shape[axis + 1 :])

"""Products as matrices, and what kernels are told of their operands (cuda/kernels/matrices.h)."""

from __future__ import annotations

import dataclasses
import math

from aspen_jax.ir.program import Op, Operand
from aspen_jax.ops.matmul import MatmulAttrs
from aspen_jax.targets.cuda.code.kernel import Strides
from aspen_jax.targets.cuda.code.vectors import vector


@dataclasses.dataclass(frozen=True)
class Axes:
    """Some of an array's axes, the last fastest, as Axes in cuda/kernels/boxes.h."""

    count: int
    of: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class MatrixShape:
    """An operand, as MatrixShape in cuda/kernels/matrices.h. Lines are rows of the left one, or columns of the right one.

    Attributes:
        input: its number.
        strides: of the output's axes, as far as they choose a matrix or a line of it.
        line: from a line to the next.
        step: from an element to the next along the depth.
        vector: adjacent elements that may be read at once.
        along_depth: whether those lie along the depth, or across it.
    """

    input: int
    strides: Strides
    line: int
    step: int
    vector: int
    along_depth: bool


@dataclasses.dataclass(frozen=True)
class Side:
    """One operand of a product: its input number, and the stride of each of the output's axes that it has."""

    number: int
    operand: Operand
    strides: dict[int, int]
    step: int  # along the depth

    def vector_along(self, depth: int) -> int:
        """Elements that may be read at once along the depth."""
        if self.step != 1 and depth > 1:
            return 1
        return vector(self.operand.dtype, depth, *self.strides.values(), self.operand.view.offset())

    def vector_across(self, axis: int | None, extent: int) -> int:
        """Elements that may be read at once along an axis, of so many adjacent ones."""
        others = [stride for own, stride in self.strides.items() if own != axis]
        return vector(self.operand.dtype, extent, self.step, *others, self.operand.view.offset())

    def shape(self, rank: int, strides: dict[int, int], line: int, vector: int, *, along_depth: bool) -> MatrixShape:
        """What a kernel is told of this side.

        Args:
            rank: of the output.
            strides: of those of the output's axes that choose a matrix or its first line.
            line: from a line to the next.
            vector: adjacent elements that may be read at once.
            along_depth: whether those lie along the depth.
        """
        of = tuple(strides.get(axis, 0) for axis in range(rank))
        return MatrixShape(self.number, Strides(rank, of), line, self.step, vector, along_depth)


@dataclasses.dataclass(frozen=True)
class Matrices:
    """A product as matrices: rows x depth by depth x columns, for each entry of the outer axes.

    Attributes:
        rows: the axes of the output that make up a row's number, the last fastest.
        column: the axis that is a column's number; None: there is one column.
        outer: the other axes of more than one element.
    """

    depth: int
    left: Side
    right: Side
    rows: tuple[int, ...]
    column: int | None
    outer: tuple[int, ...]

    @classmethod
    def of(cls, op: Op) -> Matrices | None:
        """The matrices of a product; None where no one stride walks the summed axes, or the operands' dtypes differ."""
        attrs: MatmulAttrs = op.attrs
        a, b = op.inputs[:2]
        if a.dtype != b.dtype:
            return None
        summed: dict[int, tuple[int, int, int]] = {}
        sides: list[dict[int, int]] = [{}, {}]
        for side, labels, operand in zip(sides, (attrs.a, attrs.b), (a, b), strict=True):
            for label, extent, stride in zip(labels, operand.shape, operand.view.strides(), strict=True):
                if label >= 0 and extent != 1:
                    side[label] = stride
        for label, extent in zip(attrs.a, a.shape, strict=True):
            if label < 0 and extent != 1:
                place_b = attrs.b.index(label)
                summed[label] = (extent, a.view.strides()[attrs.a.index(label)], b.view.strides()[place_b])
        depth, steps = 1, (1, 1)
        for extent, *strides in sorted(summed.values(), key=lambda item: -abs(item[1])):
            if depth > 1 and any(outer != inner * extent for outer, inner in zip(steps, strides, strict=True)):
                return None
            depth, steps = depth * extent, (strides[0], strides[1])
        axes = [axis for axis, extent in enumerate(op.output.shape) if extent != 1]
        left, right = (Side(number, op.inputs[number], sides[number], steps[number]) for number in (0, 1))
        if axes and axes[-1] in left.strides and axes[-1] not in right.strides:
            left, right = right, left
        own_columns = [axis for axis in axes if axis not in left.strides]
        column = own_columns[-1] if own_columns else None
        rows = tuple(axis for axis in axes if axis not in right.strides)
        return cls(depth, left, right, rows, column, tuple(axis for axis in axes if axis not in rows and axis != column))

    def columns_vector(self, op: Op) -> int | None:
        """Adjacent columns that may be read at once; None where they are not adjacent."""
        right = self.right
        if self.column is None or right.strides[self.column] != 1 or right.step == 1:
            return None
        return right.vector_across(self.column, op.output.shape[self.column])

    def columns_read_at_once(self, op: Op) -> int:
        """Adjacent elements of the columns that may be read at once, across or along the depth."""
        across = self.columns_vector(op)
        return self.right.vector_along(self.depth) if across is None else across

    def num_rows(self, op: Op) -> int:
        """Rows of the whole op."""
        return math.prod(op.output.shape[axis] for axis in self.rows)

"""Products of few rows (cuda/kernels/few_rows_tile.h)."""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.kernel import Kernel, constant
from aspen_jax.targets.cuda.code.vectors import STORED
from aspen_jax.targets.cuda.products.matrices import Axes, Matrices, MatrixShape

# So few rows are no work beside reading the columns.
FEW_ROWS = 8


@dataclasses.dataclass(frozen=True)
class FewRowsShape:
    """How a product of few rows is read, as FewRowsShape in cuda/kernels/few_rows_tile.h.

    Attributes:
        num_rows: of each matrix.
        depth: what is summed.
        column_axis: of the output; -1: there is one column.
        rows: the output's axes that make up a row's number.
        outer: those that choose a matrix.
        left: the rows.
        right: the columns.
    """

    num_rows: int
    depth: int
    column_axis: int
    rows: Axes
    outer: Axes
    left: MatrixShape
    right: MatrixShape

    @classmethod
    def of(cls, op: Op, matrices: Matrices) -> FewRowsShape | None:
        """The shape of a product; None where rows are many, or neither columns nor the depth are adjacent."""
        rank, left, right = len(op.output.shape), matrices.left, matrices.right
        num_rows, across = matrices.num_rows(op), matrices.columns_vector(op)
        if not 1 <= num_rows <= FEW_ROWS or (across is None and not left.step == right.step == 1):
            return None
        along = min(left.vector_along(matrices.depth), right.vector_along(matrices.depth))
        vector = along if across is None else across
        line = 0 if matrices.column is None else right.strides[matrices.column]
        return cls(
            num_rows,
            matrices.depth,
            -1 if matrices.column is None else matrices.column,
            Axes(len(matrices.rows), matrices.rows),
            Axes(len(matrices.outer), matrices.outer),
            left.shape(rank, left.strides, 0, vector, along_depth=True),
            right.shape(rank, right.strides, line, vector, along_depth=across is None),
        )


def few_rows(op: Op, shape: FewRowsShape) -> Kernel:
    """The kernel of such a product."""
    return Kernel("FewRowsTile", [STORED[op.inputs[0].dtype.name], constant(shape)])

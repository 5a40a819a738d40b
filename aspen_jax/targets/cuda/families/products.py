"""Matrix products (cuda/kernels/product_tile.h), or products of few rows (cuda/kernels/few_rows_tile.h).

Any axes in any order: the summed ones must be walked by one stride on both sides, else a thread computes an element by itself.
"""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op
from aspen_jax.ops.slices import sliced
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, template, writes
from aspen_jax.targets.cuda.code.runs import run_length
from aspen_jax.targets.cuda.families.product_by_element import product_by_element
from aspen_jax.targets.cuda.library.library import or_by_library
from aspen_jax.targets.cuda.products.blocks import block
from aspen_jax.targets.cuda.products.cores import block_core
from aspen_jax.targets.cuda.products.few_rows import FewRowsShape, few_rows
from aspen_jax.targets.cuda.products.matrices import Axes, Matrices, MatrixShape
from aspen_jax.targets.cuda.products.tensor_maps import MatrixMap, maps_of

# In place of a run: in the output rows are adjacent, not columns. Sums are stored one by one, neighbouring threads down a column.
DOWN_COLUMNS = 0


@dataclasses.dataclass(frozen=True)
class ProductShape:
    """Which rows and columns a tile multiplies, as ProductShape in cuda/kernels/product_tile.h.

    Attributes:
        depth: what is summed.
        column_axis: of the output; -1: there is one column.
        rows: the output's axes that make up a row's number.
        outer: those that choose a matrix.
        row_extents: of the whole output, along `rows`.
        left: the rows.
        right: the columns.
        run: adjacent sums that are stored at once, or DOWN_COLUMNS.
        maps: of rows and columns, for GPUs with warpgroups; (): there are none.
    """

    depth: int
    column_axis: int
    rows: Axes
    outer: Axes
    row_extents: tuple[int, ...]
    left: MatrixShape
    right: MatrixShape
    run: int
    maps: tuple[MatrixMap, ...]

    @classmethod
    def of(cls, op: Op, matrices: Matrices) -> ProductShape:
        rank, left, right, column = len(op.output.shape), matrices.left, matrices.right, matrices.column
        along_depth = matrices.columns_vector(op) is None
        row_vector, column_vector = left.vector_along(matrices.depth), matrices.columns_read_at_once(op)
        line = 0 if column is None else right.strides[column]
        return cls(
            matrices.depth,
            -1 if column is None else column,
            Axes(len(matrices.rows), matrices.rows),
            Axes(len(matrices.outer), matrices.outer),
            tuple(op.output.shape[axis] for axis in matrices.rows),
            left.shape(rank, left.strides, 0, row_vector, along_depth=True),
            right.shape(rank, right.strides, line, column_vector, along_depth=along_depth),
            sums_at_once(op) if column == rank - 1 else 1,
            maps_of(op, block(op)),
        )


def sums_at_once(op: Op) -> int:
    """Adjacent sums along the output's last axis that are stored at once."""
    return run_length(op, *(item.dtype for item in op.extra_inputs))


@writes("matmul")
def _matmul(op: Op) -> Kernel | None:
    return or_by_library(matmul(op), op)


def matmul(op: Op, run: int | None = None) -> Kernel | None:
    """A product of any axes in any order; None where it is to be sliced and cannot be.

    Args:
        op: the product.
        run: adjacent sums that blocks store at once, or DOWN_COLUMNS, and then None where no blocks are multiplied; by default as
            many as may be.
    """
    own = op if op.slices == 1 else sliced(op, op.slices)
    matrices = None if own is None else Matrices.of(own)
    if own is None or matrices is None or matrices.depth < 1:
        return product_by_element(op) if op.slices == 1 and run is None else None
    few = FewRowsShape.of(own, matrices)
    if few is not None and run is not None:
        return None
    if few is not None:
        # Along the depth lanes share it already.
        return few_rows(own, few)._replace(slices=op.slices) if op.slices == 1 or not few.right.along_depth else None
    shape = ProductShape.of(own, matrices)
    if op.slices > 1:  # what is stored is the op's
        shape = dataclasses.replace(shape, run=sums_at_once(op) if matrices.column == len(own.output.shape) - 1 else 1)
    if run is not None:
        shape = dataclasses.replace(shape, run=run)
    vector = min(shape.left.vector, shape.right.vector)
    multiplies = block_core(own, matrices.num_rows(own), shape.depth, vector, along_depth=shape.right.along_depth)
    return Kernel("ProductTile", [template(multiplies), constant(shape)], shape.run, maps=bool(shape.maps), slices=op.slices)

"""Products whose rows are in groups, each with a matrix of its own: `ragged_dot`, as mixtures of experts use it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax

from aspen_jax.ir.program import Operand
from aspen_jax.ir.view import MAX_RANK
from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.converters import Builder, Equation, Unsupported, converts, need_dtypes
from aspen_jax.ops.family import PRODUCT_COLUMNS, OpFamily, Typed, Work, pieces
from aspen_jax.ops.layout import reshaped, transposed, viewed
from aspen_jax.ops.opcodes import FLOATS

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op


class RaggedDot(OpFamily):
    """rows[..., M, K], matrices[..., G, K, N], sizes[..., G] -> [..., M, N]: the sum over all groups that hold a row.

    Rows and matrices are floats, sizes int32. Group g holds the rows from start[g] to end[g] - 1. Its end is the sum of the sizes
    up to its own, modulo 2^32. Its start is the sum of the sizes before. A row is in at most one group unless sizes are negative.
    No row reads the matrix of a group that does not hold it, so NaN and infinities of other groups do not reach it.
    """

    name = "ragged_dot"
    kernel = "ragged_dot"
    kernel_inputs = 3
    takes_epilogue = True
    alike_everywhere = False  # where a box lies says which groups hold its rows

    def infer(self, attrs: None, inputs: Sequence[Typed]) -> Typed:
        (rows, dtype), (matrices, _), (sizes, of_sizes) = inputs
        fits = len(rows) >= 2 and len(matrices) == len(rows) + 1 and of_sizes == np.int32
        if not fits or matrices[:-2] != sizes or rows[:-2] != sizes[:-1] or rows[-1:] != matrices[-2:-1]:
            raise ValueError(f"ragged_dot of {rows} by {matrices} with {of_sizes}{sizes}")
        return (*rows[:-1], matrices[-1]), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        batch, rows, columns = boxes[:, :-2], boxes[:, -2:-1], boxes[:, -1:]
        groups, depth = (np.broadcast_to((0, extent), rows.shape) for extent in op.inputs[1].shape[-3:-1])
        return np.concatenate([batch, *((rows, depth), (groups, depth, columns), (groups,))[index]], axis=1)

    def grain(self, op: Op) -> tuple[int, ...]:
        *rows, columns = op.output.shape
        return (*(1 for _ in rows), min(PRODUCT_COLUMNS, columns))

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        *_, count, depth = op.inputs[0].shape
        num_groups = op.inputs[2].shape[-1]
        regions = [self.main_region(op, index, boxes) for index in range(3)]
        rows, matrices, sizes = (
            box_sizes(region) * item.dtype.itemsize for region, item in zip(regions, op.inputs, strict=False)
        )
        # Of groups of one size, so many of the matrices are met by a tile's rows.
        height = boxes[:, -2, 1] - boxes[:, -2, 0]
        met = np.minimum(1.0, height / max(1, count) + 1 / max(1, num_groups))
        flops = own.flops + 2.0 * box_sizes(boxes) * depth
        return Work(flops, own.bytes + rows + matrices * met + sizes, pieces(op.inputs[1], regions[1]) * met)

    def reference(self, attrs: None, *inputs: jax.Array) -> jax.Array:
        rows, matrices, sizes = inputs
        rank = rows.ndim
        batch = tuple(range(rank - 2))
        numbers = lax.RaggedDotDimensionNumbers((((rank - 1,), (rank - 1,)), (batch, batch)), [rank - 2], [rank - 2])
        return lax.ragged_dot_general(rows, matrices, sizes, numbers, precision=lax.Precision.HIGHEST)


RAGGED_DOT = RaggedDot()


@converts("ragged_dot_general")
def _convert_ragged_dot(build: Builder, equation: Equation, lhs: Operand, rhs: Operand, sizes: Operand) -> Operand:
    name, params = equation.primitive, equation.params
    need_dtypes(equation, (lhs, rhs), *FLOATS)
    if sizes.dtype != np.int32:
        raise Unsupported(f"{name} with group sizes of {sizes.dtype}; the kernel takes int32")
    if params["group_offset"] is not None:
        raise Unsupported(f"{name} with a group offset")
    numbers = params["ragged_dot_dimension_numbers"]
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = (
        tuple(tuple(map(int, dims)) for dims in sides) for sides in numbers.dot_dimension_numbers
    )
    (ragged,) = map(int, numbers.lhs_ragged_dimensions)
    if ragged in (*lhs_contract, *lhs_batch):
        kind = "a summed" if ragged in lhs_contract else "a batch"
        raise Unsupported(f"{name} with groups along {kind} dimension; the kernel takes groups of rows")
    (group,) = map(int, numbers.rhs_group_dimensions)
    free = [d for d in range(len(lhs.shape)) if d not in (*lhs_contract, *lhs_batch)]
    outer = free[: free.index(ragged)]  # each of their entries has groups of its own, of the same matrices
    if free[-1] != ragged:
        raise Unsupported(f"{name} with dimensions of the left operand behind that of the groups")
    columns = [d for d in range(len(rhs.shape)) if d not in (*rhs_contract, *rhs_batch, group)]
    batch = (*(lhs.shape[d] for d in lhs_batch), *(lhs.shape[d] for d in outer))
    if len(batch) + 3 > MAX_RANK:
        raise Unsupported(f"{name} with {len(batch)} outer dimensions; the kernel takes up to {MAX_RANK - 3}")
    num_groups, depth = rhs.shape[group], math.prod(rhs.shape[d] for d in rhs_contract)
    width = math.prod(rhs.shape[d] for d in columns)

    rows = transposed(build, lhs, (*lhs_batch, *outer, ragged, *lhs_contract))
    rows = reshaped(build, rows, (*batch, lhs.shape[ragged], depth))
    matrices = transposed(build, rhs, (*rhs_batch, group, *rhs_contract, *columns))
    matrices = _repeated(build, reshaped(build, matrices, (*batch[: len(rhs_batch)], num_groups, depth, width)), batch, 3)
    if len(sizes.shape) == 1:
        sizes = _repeated(build, sizes, batch, 1)
    result = build.op(RAGGED_DOT, None, [rows, matrices, sizes], dtype=equation.dtype)
    return reshaped(build, result, equation.shape)


def _repeated(build: Builder, operand: Operand, batch: Sequence[int], inner: int) -> Operand:
    """The operand for each entry of a batch, of which it has the first dimensions; its last `inner` dimensions stay last."""
    shape = (*batch, *operand.shape[len(operand.shape) - inner :])
    if operand.shape == shape:
        return operand
    own: tuple[Any, ...] = (*range(len(operand.shape) - inner), *range(len(batch), len(shape)))
    return viewed(build, operand, operand.view.broadcast_in_dim(shape, own))

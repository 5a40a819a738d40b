"""Splits the depth of products of few rows: slices of the sums, and a sum of those.

A product becomes one with an outer axis more; its sums are float32, in the same order in every run. What was the epilogue is that
of the sum.

Tiles of such a product would take some columns of every row of a matrix, each on a page of its own. Slices of whole rows lie in
memory one after the other, and are read at its speed. Most constants of float32 come in panels, where columns do too; those are
not split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from aspen_jax.cost.machine import Machine
from aspen_jax.cost.tiling import cheapest
from aspen_jax.ir.program import Op, Operand, Program
from aspen_jax.ops import windows
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.matmul import MATMUL
from aspen_jax.ops.reduce import REDUCE, ReduceAttrs
from aspen_jax.ops.slices import sliced

# How many slices are tried.
SLICES = (2, 3, 4, 6, 8, 12, 16, 24, 32)

# Of a matrix that few rows are multiplied by a slice has at least so many rows, and so many for each row of sums that has to be
# stored and read again.
_FEWEST_READ = 64
_READ_PER_SUM = 16

# Smaller matrices may stay in the L2 caches, where pages matter less than one op more.
_LEAST_MATRIX_BYTES = 1 << 20


def run(program: Program, machine: Machine = Machine()) -> Program:  # noqa: B008 - immutable
    """Split the products for which the cost model says so."""

    def cut(op: Op) -> int:
        return _whole_rows(op, machine) if op.family is MATMUL else 1

    return split(program, cut, cut_depth)


def split(program: Program, count: Callable[[Op], int], cut: Callable[[Op, int], Sequence[Op] | None]) -> Program:
    """Put ops in slices in the place of others.

    Args:
        program: what to rewrite.
        count: into how many slices an op is best cut. It is asked once of ops that are alike.
        cut: the op in so many slices; None where it stays as it is.
    """
    known: dict[object, int] = {}
    ops: list[Op] = []
    for op in program.ops:
        if op.output.size == 0:
            ops.append(op)
            continue
        views = tuple((item.dtype, item.view) for item in op.inputs)
        key = (op.family, op.attrs, views, op.output.dtype, op.program, op.exact, op.rounded)
        if key not in known:
            known[key] = count(op)
        ops += cut(op, known[key]) or (op,)
    return program.replace(ops=tuple(ops))


def _whole_rows(op: Op, machine: Machine) -> int:
    """The most slices, of whole rows of the matrix, that are cheaper than a product of few rows as it is; else 1."""
    shape, (a, b) = op.output.shape, (op.attrs.a, op.attrs.b)
    columns = max((d for d, extent in enumerate(shape) if extent > 1), default=None)
    if columns is None:
        return 1
    labels, other, matrix = (a, b, op.inputs[0]) if columns in a else (b, a, op.inputs[1])
    row = _row(shape, dict(zip(labels, matrix.view.strides(), strict=True)), other)
    rows = math.prod(extent for d, extent in enumerate(shape) if d not in labels)
    if rows > machine.few_rows or not row:
        return 1
    depth = math.prod(extent for label, extent in zip(labels, matrix.shape, strict=True) if label < 0)
    size = depth * math.prod(extent for d, extent in enumerate(shape) if d in labels and d not in other)
    if size * matrix.dtype.itemsize < _LEAST_MATRIX_BYTES:
        return 1
    # For one worker: with more, tiles take narrower pieces of rows, and slices gain more.
    parts, as_it_is = cheapest(op, 1, machine)
    cut = {d for d, count in enumerate(parts) if count > 1}
    if cut and cut <= set(labels) - set(row):
        return 1  # tiles read whole rows as it is, each its own
    if parts[columns] == 1 and cut & set(row):
        # Pieces of rows, as where columns are cut, but the op's work sees only those.
        as_it_is += (math.prod(parts) + 1) * depth * machine.piece_ns
    for slices in reversed(SLICES):
        split = cut_depth(op, slices) if depth >= slices * max(_FEWEST_READ, _READ_PER_SUM * rows) else None
        if split is not None and sum(cheapest(part, 1, machine)[1] for part in split) < as_it_is:
            return slices
    return 1


def _row(shape: Sequence[int], strides: dict[int, int], other: Sequence[int]) -> list[int]:
    """The output's last dimensions that lie side by side in a matrix of these strides and are not the other operand's too."""
    row: list[int] = []
    length = 1
    for d in reversed(range(len(shape))):
        if shape[d] == 1:
            continue
        if d in other or strides[d] != length:
            break
        row.append(d)
        length *= shape[d]
    return row


def cut_depth(op: Op, slices: int, fewest_chunks: int = 1) -> tuple[Op, ...] | None:
    """The op as slices and their sum; None where it cannot be cut so. `fewest_chunks`: see `sliced`."""
    found = sliced(op, slices, fewest_chunks) if slices > 1 else None
    if found is None or (op.family is CONV2D and not CONV2D.reads_well(op, 0, op.inputs[0])):
        return None
    total = op.replace(
        family=REDUCE,
        attrs=ReduceAttrs(windows.SUM, (0,)),
        inputs=(Operand.whole(found.output), *op.extra_inputs),
        name=f"{op.name}/sum",
    )
    return found, total

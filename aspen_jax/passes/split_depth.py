"""Splits the depth of products and convolutions: slices of the sums, and a sum of those.

A product becomes one with an outer axis more, a convolution conv2d_slices; both sums are float32, in the same order in every run.
What was the epilogue is that of the sum.

Where a device has places for more tiles than an op has, that fills them. A GPU with clusters of thread blocks adds the slices up
in the kernel that sums them: then the op stays one, and says how many slices it has.

On CPUs it serves products of few rows whose tiles would take some columns of every row of a matrix, each on a page of its own:
slices of whole rows lie in memory one after the other, and are read at its speed. Most constants of float32 come in panels, where
columns do too; those are not split.

Attention of few queries is a tile for each head, however many keys there are. Where that is cheaper, decoding above all, it
becomes slices of the keys and their merge (attention_slices.py), or the three ops that it is, whose tiles share the keys out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aspen_jax.cost.machine import Machine
from aspen_jax.cost.tiling import cheapest
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops import windows
from aspen_jax.ops.attention import ATTENTION, parts_of
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.matmul import MATMUL
from aspen_jax.ops.reduce import REDUCE, ReduceAttrs
from aspen_jax.ops.rows import RowsAttrs
from aspen_jax.ops.slices import sliced
from aspen_jax.passes import attention_slices

_APART = 0  # the number of slices of attention that is taken apart

# How many slices are tried.
SLICES = (2, 3, 4, 6, 8, 12, 16, 24, 32)

# Products of so few rows read their columns at the memory's speed, and scores are soon stored.
_FEW_QUERIES = 8

# Of a matrix that few rows are multiplied by a slice has at least so many rows, and so many for each row of sums that has to be
# stored and read again.
_FEWEST_READ = 64
_READ_PER_SUM = 16

# Smaller matrices may stay in the L2 caches, where pages matter less than one op more.
_LEAST_MATRIX_BYTES = 1 << 20


def run(program: Program, machine: Machine = Machine()) -> Program:  # noqa: B008 - immutable
    """Split the ops for which the cost model says so."""
    known: dict[object, int] = {}
    ops: list[Op] = []
    for op in program.ops:
        if op.family not in (MATMUL, CONV2D, ATTENTION) or op.output.size == 0:
            ops.append(op)
            continue
        views = tuple((item.dtype, item.view) for item in op.inputs)
        key = (op.family, op.attrs, views, op.output.dtype, op.program, op.exact, op.rounded)
        if key not in known:
            known[key] = _slices_of(op, machine)
        cut = _of_few_queries(op, known[key], machine) if op.family is ATTENTION else cut_depth(op, known[key], machine)
        ops += cut or (op,)
    return program.replace(ops=tuple(ops))


def _slices_of(op: Op, machine: Machine) -> int:
    """Into how many slices an op is best cut; 1: it stays as it is."""
    on_cpu = machine.places == 1
    measured = machine.measured_slices(op)
    if measured is not None:
        return measured
    if op.family is ATTENTION:
        return 1 if on_cpu or op.attrs.shape[-2] > _FEW_QUERIES else _cheapest_attention(op, machine)
    if on_cpu:
        return _whole_rows(op, machine) if op.family is MATMUL else 1
    return _cheapest(op, machine)[0]


def price(ops: Sequence[Op], machine: Machine) -> float:
    """Nanoseconds of ops of a GPU that wait for each other, each cut into the slices that are cheapest."""
    return (len(ops) - 1) * machine.launch_ns + sum(_cheapest(op, machine)[1] for op in ops)


def modelled_slices(op: Op, machine: Machine) -> int:
    """Into how many slices the cost model cuts a product or convolution of a GPU."""
    return _cheapest(op, machine)[0]


def _cheapest_attention(op: Op, machine: Machine) -> int:
    """Into how many slices of its keys attention is best cut; _APART: best it is taken apart."""
    heads = math.prod(op.attrs.shape[:-2])
    prices = {1: cheapest(op, machine.places, machine)[1]}
    for slices in (_APART, *SLICES):
        # More than fill the places would only make more to merge.
        found = _of_few_queries(op, slices, machine) if heads * slices <= machine.places else None
        if found is not None:
            prices[slices] = _price(found, machine)
    return min(prices, key=lambda slices: prices[slices])


def _of_few_queries(op: Op, slices: int, machine: Machine) -> Sequence[Op] | None:
    """Attention as so many slices and their merge, or taken apart; None where it cannot be, or is to stay as it is."""
    if slices == _APART:
        parts = _apart(op)
        if any(part.output.size == 0 for part in parts):
            return None
        return [
            own
            for part in parts
            for own in (cut_depth(part, _cheapest(part, machine)[0], machine) if part.family is MATMUL else None) or (part,)
        ]
    found = attention_slices.sliced(op, slices) if slices > 1 else None
    return found if found is not None and machine.has_kernel(found[0]) else None


def _price(ops: Sequence[Op], machine: Machine) -> float:
    """Nanoseconds of ops that wait for each other."""
    return (len(ops) - 1) * machine.launch_ns + sum(cheapest(op, machine.places, machine)[1] for op in ops)


def _apart(op: Op) -> tuple[Op, Op, Op]:
    """The three ops, the weights stored as what they are multiplied with: products take operands of one dtype."""
    scores, rows, values = parts_of(op)
    place = op.attrs.values_chained
    dtype = values.main_inputs[1 - place].dtype
    if rows.output.dtype == dtype:
        return scores, rows, values
    stored = Value(rows.output.shape, dtype)
    inputs = list(values.inputs)
    inputs[place] = Operand.whole(stored)
    rows = rows.replace(attrs=RowsAttrs(rows.attrs.axes, rows.attrs.rows.stored_as(dtype)), output=stored)
    return scores, rows, values.replace(inputs=tuple(inputs))


def _cheapest(op: Op, machine: Machine) -> tuple[int, float]:
    """Into how many slices the op is best cut, and its nanoseconds then."""
    parts, best = cheapest(op, machine.places, machine)
    found = 1
    for slices in SLICES if op.family in (MATMUL, CONV2D) else ():
        # More than fill the places would only make partial sums.
        split = cut_depth(op, slices, machine) if math.prod(parts) * slices <= machine.places else None
        if split is None:
            continue
        price = _price(split, machine)
        if price < best:
            best, found = price, slices
    return found, best


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
        split = cut_depth(op, slices, machine) if depth >= slices * max(_FEWEST_READ, _READ_PER_SUM * rows) else None
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


def cut_depth(op: Op, slices: int, machine: Machine) -> tuple[Op, ...] | None:
    """The op as slices and their sum, or as one op where the machine adds slices up in the kernel; None: it cannot be cut so."""
    found = sliced(op, slices, machine.fewest_chunks) if slices > 1 else None
    if found is None or (op.family is CONV2D and not CONV2D.reads_well(op, 0, op.inputs[0])):
        return None
    if machine.adds_slices(op, slices):
        return (op.replace(slices=slices),)
    total = op.replace(
        family=REDUCE,
        attrs=ReduceAttrs(windows.SUM, (0,)),
        inputs=(Operand.whole(found.output), *op.extra_inputs),
        name=f"{op.name}/sum",
    )
    return found, total

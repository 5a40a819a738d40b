"""Splits the depth of products and convolutions: slices of the sums, and a sum of those.

A product becomes one with an outer axis more, a convolution conv2d_slices; both sums are float32, in the same order in every run.
What was the epilogue is that of the sum. That fills places for which an op has no tiles. Where thread blocks come in clusters, a
kernel adds the slices up itself: then the op stays one, and says how many slices it has.

Attention of few queries is a tile for each head, however many keys there are. Where that is cheaper, decoding above all, it
becomes slices of the keys and their merge (attention_slices.py), or the three ops that it is, whose tiles share the keys out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aspen_jax.cost.tiling import cheapest
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.attention import ATTENTION, parts_of
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.matmul import MATMUL
from aspen_jax.ops.rows import RowsAttrs
from aspen_jax.passes import split_depth
from aspen_jax.passes.split_depth import SLICES
from aspen_jax.targets.cuda.passes import attention_slices
from aspen_jax.targets.cuda.price import Gpu

_APART = 0  # the number of slices of attention that is taken apart

# Products of so few rows read their columns at the memory's speed, and scores are soon stored.
_FEW_QUERIES = 8


def run(program: Program, machine: Gpu) -> Program:
    """Split the ops for which the cost model says so."""

    def cut(op: Op, slices: int) -> Sequence[Op] | None:
        return _of_few_queries(op, slices, machine) if op.family is ATTENTION else cut_depth(op, slices, machine)

    return split_depth.split(program, lambda op: _slices_of(op, machine), cut)


def _slices_of(op: Op, machine: Gpu) -> int:
    """How many slices an op is best cut into; 1: it stays as it is."""
    if op.family not in (MATMUL, CONV2D, ATTENTION):
        return 1
    measured = machine.measured_slices(op)
    if measured is not None:
        return measured
    if op.family is ATTENTION:
        return 1 if op.attrs.shape[-2] > _FEW_QUERIES else _cheapest_attention(op, machine)
    return _cheapest(op, machine)[0]


def price(ops: Sequence[Op], machine: Gpu) -> float:
    """Nanoseconds of ops that wait for each other, each cut into the slices that are cheapest."""
    return (len(ops) - 1) * machine.launch_ns + sum(_cheapest(op, machine)[1] for op in ops)


def modelled_slices(op: Op, machine: Gpu) -> int:
    """How many slices the cost model cuts a product or convolution into."""
    return _cheapest(op, machine)[0]


def _cheapest_attention(op: Op, machine: Gpu) -> int:
    """How many slices of keys attention is best cut into; _APART: it is best taken apart."""
    heads = math.prod(op.attrs.shape[:-2])
    prices = {1: cheapest(op, machine.places, machine)[1]}
    for slices in (_APART, *SLICES):
        # More than fill the places would only make more to merge.
        found = _of_few_queries(op, slices, machine) if heads * slices <= machine.places else None
        if found is not None:
            prices[slices] = _price(found, machine)
    return min(prices, key=lambda slices: prices[slices])


def _of_few_queries(op: Op, slices: int, machine: Gpu) -> Sequence[Op] | None:
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


def _price(ops: Sequence[Op], machine: Gpu) -> float:
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


def _cheapest(op: Op, machine: Gpu) -> tuple[int, float]:
    """How many slices the op is best cut into, and its nanoseconds then."""
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


def cut_depth(op: Op, slices: int, machine: Gpu) -> tuple[Op, ...] | None:
    """The op as slices and their sum, or as one op whose kernel adds slices up; None: it cannot be cut so."""
    found = split_depth.cut_depth(op, slices, machine.fewest_chunks)
    return (op.replace(slices=slices),) if found is not None and machine.adds_slices(op, slices) else found

"""What a graph of tiles does on a GPU, and what XLA does there, in amounts of work by name; gpus.json has the time of each.

The amounts of a launch are those of the busiest place for a thread block, in work of whole blocks (`work_of_boxes`): few tiles
leave most places idle, and take as long as one tile. XLA's amounts are totals: kernels after fusion, what they compute and move.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from aspen_jax.cost.equations import of_equation
from aspen_jax.cuda.few_rows import FEW_ROWS
from aspen_jax.cuda.horizontal import launched_with
from aspen_jax.cuda.library import by_library
from aspen_jax.cuda.machine import NUM_BLOCKS, work_of_boxes
from aspen_jax.cuda.streams import PLACES, is_streamed
from aspen_jax.frontend.partition import Converted
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.lowering import xla_cost
from aspen_jax.ops import partial_reduce, transposed
from aspen_jax.ops.stack import WEIGHTED, parts_of

# Kinds of launches, each with rates of its own.
PRODUCT, ODD_PRODUCT, GROUPED, FEW, ATTENTION, ROWS, ELEMENTS = KINDS = (
    "product",
    "product of odd extents",
    "convolution of groups",
    "product of few rows",
    "attention",
    "rows",
    "elements",
)
_ROWS = ("rows", "reduce", "arg_reduce", "cumulative")

# A vector of an operand, in bytes.
_VECTOR_BYTES = 16

Amounts = dict[str, float]


def of_graph(program: Program, graph: TileGraph) -> Amounts:
    """The amounts of work of a graph that a GPU runs in one call.

    Args:
        program: what the graph was built from.
        graph: its tiles.
    """
    found: collections.defaultdict[str, float] = collections.defaultdict(float, {"calls": 1.0})
    boxes = collections.defaultdict(list)
    for number, first in enumerate(launched_with(program.ops, graph)):
        boxes[first].append(graph.tiles_of(number)[1])
    for first, together in boxes.items():
        for name, amount in of_launch(program.ops[first], np.concatenate(together)).items():
            found[name] += amount
    return dict(found)


def of_launch(op: Op, boxes: np.ndarray) -> Amounts:
    """The amounts of a launch.

    Args:
        op: its op, or the first of several that are alike.
        boxes: int64 [tiles, rank, 2], the tiles of them all.
    """
    if not len(boxes):
        return {}
    work, kind = work_of_boxes(op, boxes), kind_of(op)
    # A streamed tile has the rates of so many places, and that of a library all of them.
    share = NUM_BLOCKS if by_library(op) else PLACES if is_streamed(op) else 1
    turns = max(1.0, len(boxes) * op.slices * share / NUM_BLOCKS) / (share * len(boxes))
    sums = {"sums of clusters": 1.0} if op.slices > 1 else {}
    return {
        f"{kind} launches": 1.0,
        f"{kind} flops": float(work.flops.sum()) * turns,
        f"{kind} bytes": float(work.bytes.sum()) * turns,
        **sums,
    }


def kind_of(op: Op) -> str:
    """The kind of an op's launch."""
    name = op.family.name
    if op.family is transposed.TRANSPOSED:
        return kind_of(transposed.part_of(op))
    if op.family is partial_reduce.PARTIAL_REDUCE:
        return kind_of(partial_reduce.part_of(op))
    if name == "stack" and (parts := parts_of(op))[0].family in WEIGHTED:
        return kind_of(parts[0])
    if name in ("conv2d", "conv2d_slices"):
        if op.attrs.groups > 1:
            return GROUPED
        channels_apart = op.inputs[0].view.strides()[3] != 1
        return ODD_PRODUCT if channels_apart or not all(map(_is_whole, op.main_inputs)) else PRODUCT
    if name == "matmul":
        if not all(map(_is_whole, op.main_inputs)):
            return ODD_PRODUCT
        rows = min(_side(op, op.attrs.a), _side(op, op.attrs.b))
        return FEW if rows <= FEW_ROWS else PRODUCT
    if name.startswith("attention"):
        return ATTENTION
    return ROWS if name in _ROWS else ELEMENTS


def _is_whole(operand: Operand) -> bool:
    """Whether an operand can be read in whole vectors: what is not adjacent lies a multiple of one apart."""
    count = _VECTOR_BYTES // operand.dtype.itemsize
    strides = [stride for stride, extent in zip(operand.view.strides(), operand.shape, strict=True) if extent > 1]
    return all(stride in (0, 1) or stride % count == 0 for stride in strides)


def _side(op: Op, labels: Sequence[int]) -> int:
    """Rows of an operand of a product, or its columns: extents of the output that the other operand does not have."""
    both = set(op.attrs.a) & set(op.attrs.b)
    size = 1
    for label in labels:
        if label >= 0 and label not in both:
            size *= op.output.shape[label]
    return size


def of_xla(items: Sequence[Converted], outputs: Iterable[Value]) -> Amounts:
    """The amounts of work of XLA on a GPU, for what tiles would do in one call.

    Args:
        items: the equations, in order.
        outputs: what is read of them by others.
    """
    kernels, nbytes = xla_cost.kernels(items, outputs)
    flops = 0.0
    for item in items:
        if item.equation.primitive.name in ("dot_general", "conv_general_dilated"):
            # Tensor cores multiply float32, as TF32, at half the rate of 16 bits.
            aval: Any = item.equation.invars[0].aval
            itemsize = np.dtype(aval.dtype).itemsize
            flops += of_equation(item.equation).flops * max(1.0, itemsize / 2)
    return {"calls": 1.0, "kernels": float(kernels), "flops": flops, "bytes": nbytes}

"""What a graph of tiles does, in amounts of work by name; `aspen_jax/targets/cpu/choice.py` has the time of each."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from aspen_jax.cost.loops import num_shares
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.block import program_flops
from aspen_jax.ops.block_program import BlockProgram
from aspen_jax.ops.gather import GATHER
from aspen_jax.ops.loop import LOOP, LoopAttrs, turns_of
from aspen_jax.ops.partial_reduce import PARTIAL_REDUCE, part_of
from aspen_jax.ops.transposed import TRANSPOSED
from aspen_jax.ops.transposed import part_of as untransposed

# Elements of the widest register.
_LANES = 16

# A larger array does not stay in a core's own cache.
FAR_BYTES = 1 << 20
# If all arrays together are larger, they do not stay in a shared cache.
MEMORY_BYTES = 1 << 25

# Kernels of products, whose registers hold so many columns.
_COLUMNS = 32
_THIN = 8

# Instructions that take longer than an addition, by name without the type.
_DEAR = ("div", "sqrt", "exp", "log", "log1p", "tanh", "logistic", "sin", "rem")
# Those that few programs have take as long as one like them.
_LIKE = {"rsqrt": "sqrt", "expm1": "exp", "erf": "tanh", "cos": "sin", "pow": "sin"}
_PRODUCTS = ("matmul", "matmul_panels", "bf16x6", "strassen")
# Kernels that do the work of another one, and have its rates.
_AS_ANOTHER = {"ragged_dot": "matmul"}

Amounts = dict[str, float]


def amounts(program: Program, graph: TileGraph, num_workers: int) -> Amounts:
    """The amounts of work of a graph.

    Args:
        program: what the graph was built from.
        graph: its tiles.
        num_workers: how many workers walk it.
    """
    tiles = np.bincount(graph.tile_ops, minlength=len(program.ops))
    found: collections.defaultdict[str, float] = collections.defaultdict(float)
    found["ops"] = len(program.ops)
    found["levels"] = graph.max_depth + 1
    found["tiles"] = float(tiles.sum()) / num_workers
    found["edges"] = float(len(graph.children)) / num_workers
    known: dict[tuple[Any, int], Amounts] = {}  # layers repeat
    for op, count in zip(program.ops, tiles, strict=True):
        share = 1.0 / max(1, min(num_workers, int(count)))
        case = op.likeness, int(count)
        if case not in known:
            known[case] = _of_op(op, int(count), num_workers)
        for name, amount in known[case].items():
            found[name] += amount * share
    made = {value for op in program.ops for value in op.outputs}
    read: dict[Value, int] = {}
    for op in program.ops:
        for operand in op.inputs:
            read[operand.value] = max(read.get(operand.value, 0), _bytes_read(op, operand))
    if (total := float(sum(nbytes for value, nbytes in read.items() if value not in made))) > MEMORY_BYTES:
        found["bytes of memory"] = total
    return dict(found)


def _of_op(op: Op, num_tiles: int, num_workers: int) -> Amounts:
    family = op.family
    size = float(op.output.size)
    if not size:
        return {}
    if family is LOOP:
        return _of_loop(op.attrs, num_workers)
    if family is TRANSPOSED:
        return _of_op(untransposed(op), num_tiles, num_workers)
    if family is PARTIAL_REDUCE:
        kind = "rows" if len(op.output.shape) - 1 in op.attrs.axes else "columns"
        reduced = {f"flops of sums of {kind}": size, "bytes": float(op.further[0].nbytes)}
        own = _of_op(part_of(op), num_tiles, num_workers)
        return {name: own.get(name, 0.0) + reduced.get(name, 0.0) for name in (*own, *(reduced.keys() - own.keys()))}
    shape = op.output.shape
    whole = np.array([[(0, extent) for extent in shape]], np.int64).reshape(1, -1, 2)
    work = family.work(op, whole)
    kernel = _AS_ANOTHER.get(family.kernel, family.kernel)
    narrow = "narrow " if any(item.dtype.itemsize == 2 for item in op.main_inputs) else ""
    own = max(0.0, float(work.flops[0]) - size * program_flops(op.program))
    columns = shape[-1] if shape else 1
    if kernel == "block":
        columns = _side_by_side(op)
    rows = size / columns
    found: collections.defaultdict[str, float] = collections.defaultdict(float)
    if op.program is not None:
        _add_program(found, op.program, size, columns)
    if kernel == "rows":
        _add_rows(found, op)
    elif kernel == "reduce":
        inner = max((axis for axis, extent in enumerate(op.inputs[0].shape) if extent > 1), default=0)
        kind = "rows" if inner in op.attrs.axes else "columns"
        found[f"sums of {kind}"] = size
        found[f"flops of sums of {kind}"] = own
    elif kernel == "scatter":
        points = float(max((math.prod(index.shape) for index in op.main_inputs[2:]), default=1))
        found["scatter points"] = num_tiles * points
        found["scattered"] = float(math.prod(op.inputs[1].shape))
    else:
        found[f"thin {kernel} rows" if kernel == "matmul" and columns < _THIN else f"{kernel} rows"] = rows
        if own:
            found[f"{narrow}{kernel} flops"] = own
    if kernel in _PRODUCTS and columns >= _THIN:  # those of fewer are sums along the depth, which fill registers
        found[f"{kernel} idle flops"] = own * (-columns % _COLUMNS) / columns
    if family.kernel == "ragged_dot":
        *batch, _, _ = shape
        found["products of a batch"] = float(math.prod(batch) * op.inputs[2].shape[-1])
    if family.kernel == "matmul":
        batch = set(op.attrs.a) & set(op.attrs.b) - set(range(-len(op.attrs.a), 0))
        found["products of a batch"] = float(math.prod(shape[label] for label in batch))
    for operand in op.inputs:
        if operand.value.size > 1:
            for name, amount in _of_operand(op, operand).items():
                found[name] += amount
    for value in op.outputs:
        written = 0 if op.family.keeps_rest(op) else value.nbytes
        found["far bytes" if written > FAR_BYTES else "bytes"] += written
    return found


def _of_loop(attrs: LoopAttrs, num_workers: int) -> Amounts:
    """All turns, with the parts shared that workers share."""
    turn: collections.defaultdict[str, float] = collections.defaultdict(float, {"parts": len(attrs.body.ops)})
    for part, axis, unit in attrs.parts():
        shares = num_shares(part, axis, unit, num_workers)
        turn["shared parts"] += shares > 1
        for name, amount in _of_op(part, 1, num_workers).items():
            turn["bytes of turns" if name in ("bytes", "far bytes") else name] += amount / shares
    return {name: amount * turns_of(attrs) for name, amount in turn.items()}


def _add_program(found: Amounts, program: BlockProgram, elements: float, columns: float) -> None:
    """The instructions of an element-wise program, each on all elements, in runs of so many."""
    lanes = elements / columns * (-columns % _LANES)
    for opcode, _ in program.instructions:
        name = opcode.rpartition("_")[0] or opcode
        name = _LIKE.get(name, name)
        kind = name if name in _DEAR else "instruction"
        if name == "rem" and columns < _LANES:
            kind = "rem of short rows"
        found[kind] = found.get(kind, 0.0) + elements
        found["idle lanes"] = found.get("idle lanes", 0.0) + lanes


def _add_rows(found: Amounts, op: Op) -> None:
    """A row program: each instruction of each row costs a start, which short rows feel."""
    read = op.inputs[0].shape
    axes = [axis for axis in op.attrs.axes if read[axis] > 1]
    length = math.prod(read[axis] for axis in axes)
    behind = math.prod(read[max(axes, default=len(read) - 1) + 1 :])
    # Where the rows' elements do not lie side by side, the kernel takes those of neighbouring rows together.
    length = behind if behind > 1 else max(1, length)
    rows = math.prod(read) / length
    stages = op.attrs.rows.stages
    for stage in stages:
        _add_program(found, stage.program, float(math.prod(read)), length)
    found["elements of rows"] = float(math.prod(read)) * len(stages)
    found["rows of row programs"] = rows
    found["instructions of rows"] = rows * sum(len(stage.program.instructions) for stage in stages)
    found["stages of rows"] = rows * len(stages)


def _bytes_read(op: Op, operand: Operand) -> int:
    """The bytes of an operand that an op reads; of a table, what it gathers."""
    elements = op.output.size if op.family is GATHER and operand is op.inputs[0] else math.prod(operand.shape)
    return min(operand.value.nbytes, elements * operand.dtype.itemsize)


def _side_by_side(op: Op) -> int:
    """How many elements the block interpreter takes as one run: those that lie in one stretch on all sides."""
    shape = op.output.shape
    run = 1
    for axis in reversed(range(len(shape))):
        if run > 1 and any(_breaks(operand.view.strides(), shape, axis) for operand in op.inputs):
            break
        run *= shape[axis]
    return max(1, run)


def _breaks(strides: Sequence[int], shape: Sequence[int], axis: int) -> bool:
    """Whether a step along the axis is none from the end of the dimensions behind it."""
    inner = next((other for other in range(axis + 1, len(shape)) if shape[other] > 1), None)
    return inner is not None and shape[axis] > 1 and strides[axis] != strides[inner] * math.prod(shape[axis + 1 :])


def _of_operand(op: Op, operand: Operand) -> Amounts:
    """Reading one operand as a whole, through its view."""
    nbytes = _bytes_read(op, operand)
    if op.family.keeps_rest(op) and operand == op.family.rewritten(op):
        return {}
    found = {"far bytes" if operand.value.nbytes > FAR_BYTES else "bytes": float(nbytes)}
    strides = [stride for stride, extent in zip(operand.view.strides(), operand.shape, strict=True) if extent > 1]
    if strides and strides[-1] not in (0, 1):
        found[f"strided {op.family.kernel}" if op.family.kernel == "block" else "strided"] = float(math.prod(operand.shape))
    return found

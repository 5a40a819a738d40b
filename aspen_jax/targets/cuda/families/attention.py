"""Attention whose row program is a softmax, whatever is masked, scaled or added before, and slices of such.

Both are cuda/kernels/attention_tile.h. Anything else is taken apart into the three ops that it is (`unfused`).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from aspen_jax.ir.program import Op, Operand, Program
from aspen_jax.ops.attention import ATTENTION, parts_of
from aspen_jax.ops.attention_slices import attention_of
from aspen_jax.ops.block_program import BlockProgram
from aspen_jax.ops.softmax import softmax_of
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, template, writes
from aspen_jax.targets.cuda.code.lanes import function, lane_bits, load, statements
from aspen_jax.targets.cuda.code.vectors import ELEMENTS, KINDS, STORED
from aspen_jax.targets.cuda.families.products import sums_at_once
from aspen_jax.targets.cuda.products.cores import FmaCore, MmaCore, core
from aspen_jax.targets.cuda.products.matrices import Axes, Matrices, MatrixShape, Side
from aspen_jax.targets.cuda.products.tensor_maps import MatrixMap, matrix_map

# Of shared memory, which compute capability 8.0 has and later data-centre devices too.
_MOST_BYTES = 160 << 10

_KEYS = 64  # at a time
_MOST_COLUMNS = 128


@dataclasses.dataclass(frozen=True)
class AttentionShape:
    """Which queries, keys and values a tile goes through, as AttentionShape in cuda/kernels/attention_tile.h.

    Attributes:
        row_axis: of the output, along the queries' rows.
        column_axis: of the output, along the values' columns; -1: there is one column.
        outer: the output's other axes of more than one element.
        scores: for each axis of the scores but the keys, the axis of the output.
        depth: of the first product.
        num_keys: of the second one.
        num_columns: of the values.
        slice: keys of a slice; 0: there are no slices.
        queries: the first product's left side.
        keys: its right side.
        values: the second product's right side.
        reach: of row r all weights are exact zeros from key r + reach on,
        most: if no score is larger than this lane.
        run: adjacent sums that are stored at once.
        maps: of keys and values, for GPUs with warpgroups; (): there are none.
    """

    row_axis: int
    column_axis: int
    outer: Axes
    scores: Axes
    depth: int
    num_keys: int
    num_columns: int
    slice: int
    queries: MatrixShape
    keys: MatrixShape
    values: MatrixShape
    reach: int
    most: int
    run: int
    maps: tuple[MatrixMap, ...] = ()

    @classmethod
    def of(cls, op: Op) -> AttentionShape | None:
        """The shape of an op; None where no one stride walks a sum, or something between the products is no float32."""
        attrs, rank, whole = op.attrs, len(op.output.shape), whole_of(op)
        scores, rows, values = parts_of(whole)
        matrices, v, last = Matrices.of(scores), values.main_inputs[1 - attrs.values_chained], len(attrs.shape) - 1
        if matrices is None or matrices.depth < 1 or v.dtype.name not in ELEMENTS or not op.output.size:
            return None
        if {scores.output.dtype.name, rows.output.dtype.name} != {"float32"} or matrices.left.operand.dtype != v.dtype:
            return None
        if last not in matrices.right.strides or (last - 1 not in matrices.left.strides and attrs.shape[last - 1] != 1):
            return None
        # The slices are an axis of the output before those of the attention.
        is_sliced = op is not whole
        labels = [tuple(label + (is_sliced and label >= 0) for label in own) for own in (values.attrs.a, values.attrs.b)]
        weights_labels, v_labels = labels[attrs.values_chained], labels[1 - attrs.values_chained]
        out_axes = weights_labels[:last]
        right = _values(op, v, v_labels, v_labels.index(weights_labels[last]))
        own = [axis for axis in sorted(right.strides) if axis not in out_axes]
        column = rank - 1 if is_sliced else own[-1] if own else -1
        num_columns = 1 if column < 0 else v.shape[v_labels.index(column)]
        taken = (out_axes[-1], column)
        outer = tuple(axis for axis, size in enumerate(op.output.shape) if size != 1 and axis not in taken)
        return cls(
            out_axes[-1],
            column,
            Axes(len(outer), outer),
            Axes(last, out_axes),
            matrices.depth,
            attrs.shape[last],
            num_columns,
            op.attrs.length if is_sliced else 0,
            _queries_shape(matrices, rank, out_axes, outer),
            _keys_shape(matrices, rank, out_axes, outer, attrs.shape[last]),
            _values_shape(right, rank, column, outer, num_columns, attrs.shape[last]),
            attrs.reach,
            lane_bits(np.array(2.0**attrs.exponent, np.float32)),
            # A program behind the second product is an element's.
            sums_at_once(op) if values.program is None and not is_sliced and column == rank - 1 else 1,
        )


def whole_of(op: Op) -> Op:
    """The attention that an op is, or is the slices of."""
    return op if op.family is ATTENTION else attention_of(op)


def _values(op: Op, v: Operand, labels: tuple[int, ...], summed: int) -> Side:
    """The values by axes of the output; `summed` is their axis along the keys."""
    strides = v.view.strides()
    own = zip(labels, v.shape, strides, strict=True)
    number = op.attrs.scores_inputs + op.attrs.rows_inputs - 1
    return Side(number, v, {label: stride for label, size, stride in own if label >= 0 and size != 1}, strides[summed])


def _queries_shape(matrices: Matrices, rank: int, out_axes: tuple[int, ...], outer: tuple[int, ...]) -> MatrixShape:
    queries, row = matrices.left, len(out_axes) - 1
    strides = {out_axes[axis]: stride for axis, stride in queries.strides.items()}
    own = {axis: stride for axis, stride in strides.items() if axis in outer or axis == out_axes[row]}
    vector = queries.vector_along(matrices.depth)
    return queries.shape(rank, own, queries.strides.get(row, 0), vector, along_depth=True)


def _keys_shape(matrices: Matrices, rank: int, out_axes: tuple[int, ...], outer: tuple[int, ...], num_keys: int) -> MatrixShape:
    keys, last = matrices.right, len(out_axes)
    own = {out_axes[axis]: stride for axis, stride in keys.strides.items() if axis != last and out_axes[axis] in outer}
    along = keys.step == 1 or keys.strides[last] != 1
    vector = keys.vector_along(matrices.depth) if along else keys.vector_across(last, num_keys)
    return keys.shape(rank, own, keys.strides[last], vector, along_depth=along)


def _values_shape(values: Side, rank: int, column: int, outer: tuple[int, ...], num_columns: int, num_keys: int) -> MatrixShape:
    own = {axis: stride for axis, stride in values.strides.items() if axis in outer or axis == column}
    line = values.strides.get(column, 0)
    vector = values.vector_along(num_keys) if line != 1 else values.vector_across(column, num_columns)
    return values.shape(rank, own, line, vector, along_depth=line != 1)


def _maps(op: Op, shape: AttentionShape, columns: int) -> tuple[MatrixMap, ...]:
    """Maps of keys and values, for blocks of `columns` columns; () where one has none."""
    made = []
    for matrix, depth, num_lines, box_lines in (
        (shape.keys, shape.depth, shape.num_keys, _KEYS),
        (shape.values, shape.num_keys, shape.num_columns, columns),
    ):
        strides = dict(enumerate(matrix.strides.of))
        # Boxes are as deep as a chunk, which is as deep as there are keys at a time.
        size = (depth, (num_lines, matrix.line), box_lines) if matrix.along_depth else (num_lines, (depth, matrix.step), _KEYS)
        made.append(matrix_map(op, matrix.input, strides, shape.outer.of, *size, along_depth=matrix.along_depth))
    return () if None in made else tuple(made)


@dataclasses.dataclass(frozen=True)
class HeldCore:
    """Warps of 16 rows and all columns, whose sums are the rows of the next product (cuda/kernels/held_rows.h)."""

    kind: str
    core: str
    reads_held: bool


@dataclasses.dataclass(frozen=True)
class HeldGroupCore:
    """A warpgroup of 64 rows and all columns, whose sums are the rows of the next product (cuda/kernels/held_rows.h)."""

    kind: str
    columns: int
    along_depth: bool
    reads_held: bool


@dataclasses.dataclass(frozen=True)
class OfDevice:
    """The core by warpgroups where a GPU has their instructions, else the core by warps."""

    groups: str
    warps: str


@dataclasses.dataclass(frozen=True)
class AttentionCores:
    """What multiplies queries with keys, and weights with values: as many rows by as many threads.

    Attributes:
        scores: the first product's.
        values: the second one's.
        held: whether scores and weights stay in registers, or pass through shared memory.
        groups: whether a GPU that has warpgroups multiplies by them, and scores and weights stay in registers there.
    """

    scores: FmaCore | MmaCore
    values: FmaCore | MmaCore
    held: bool = False
    groups: bool = False

    @classmethod
    def of(cls, op: Op, shape: AttentionShape) -> AttentionCores | None:
        """The most rows that fit into shared memory and are not mostly empty; None where none fit."""
        asked, like = op.attrs.shape[-2], op.replace(inputs=(op.inputs[shape.values.input],))
        itemsize = like.inputs[0].dtype.itemsize
        is_wide = itemsize == 4 and op.exact
        # They read what is copied in whole units of a swizzle, 64 elements deep; of float32 they would cut bits off.
        vectors = {matrix.vector * itemsize for matrix in (shape.queries, shape.keys, shape.values)}
        groups = asked > 32 and itemsize == 2 and vectors == {16} and shape.depth >= _KEYS
        width = _MOST_COLUMNS if shape.num_columns > 64 and not is_wide else 64
        smallest = 32 if is_wide else 16
        # More sums than 32 a thread would take too many registers beside scores. Of float32 values change places (held_rows.h).
        may_move = itemsize == 2 or not shape.values.along_depth
        if asked > 32 and width == 64 and not is_wide and may_move:
            kind = KINDS[like.inputs[0].dtype.name]
            cores = cls(
                MmaCore(kind, 64, _KEYS, 16, _KEYS, shape.keys.along_depth),
                MmaCore(kind, 64, width, 16, width, shape.values.along_depth),
                held=True,
                groups=groups,
            )
            if cores.nbytes(shape.depth, itemsize) <= _MOST_BYTES:
                return cores
        for rows in (64, 32, 16):
            if rows < smallest or (rows > smallest and rows >= 2 * asked):
                continue
            # More sums than 32 a thread, beside the scores, would not stay in registers.
            warps = 8 if width > 64 and rows > 16 else 4
            cores = cls(
                core(like, rows, along_depth=shape.keys.along_depth, columns=_KEYS, warps=warps),
                core(like, rows, along_depth=shape.values.along_depth, columns=width, warps=warps),
                groups=groups and rows == 64,
            )
            if cores.nbytes(shape.depth, itemsize) <= _MOST_BYTES:
                return cores
        return None

    def nbytes(self, depth: int, itemsize: int) -> int:
        """Bytes of shared memory, but for some words a row."""
        chunk, padding = 64 // itemsize, 16 // itemsize
        rows, row = self.scores.rows, chunk + padding

        def columns_of(own: FmaCore | MmaCore, depth: int) -> int:
            return -(-depth // chunk) * (own.columns * row if own.along_depth else chunk * (own.columns + 8))

        between = 0 if self.held else rows * (_KEYS + 4) * 4 + _KEYS // chunk * rows * row * itemsize
        columns = columns_of(self.scores, depth) + columns_of(self.values, _KEYS)
        passing = rows * (self.values.columns + 8) * 4
        return -(-depth // chunk) * rows * row * itemsize + max(columns * itemsize, passing) + between

    def names(self) -> list[str]:
        """The names of both cores as C++."""
        names = []
        for own, reads_held in ((self.scores, False), (self.values, True)):
            name = template(own)
            if isinstance(own, MmaCore) and self.held:
                name = template(HeldCore(own.kind, name, reads_held))
            if isinstance(own, MmaCore) and self.groups:
                groups = HeldGroupCore(own.kind, own.columns, own.along_depth, reads_held)
                name = template(OfDevice(template(groups), name))
            names.append(name)
        return names


def unfused(program: Program) -> Program:
    """The program with attention that has no kernel of its own as product, row program and product."""
    ops: list[Op] = []
    for op in program.ops:
        ops += parts_of(op) if op.family is ATTENTION and _attention(op) is None else (op,)
    return program.replace(ops=tuple(ops))


@writes("attention")
def _attention(op: Op) -> Kernel | None:
    logits = softmax_of(parts_of(op)[1].attrs.rows)
    return None if logits is None else _kernel(op, logits)


@writes("attention_slices")
def _attention_slices(op: Op) -> Kernel | None:
    (logits,) = parts_of(whole_of(op))[1].attrs.rows.stages
    return _kernel(op, logits.program)


def _kernel(op: Op, logits: BlockProgram) -> Kernel | None:
    """The kernel of attention whose softmax takes `logits`."""
    shape = AttentionShape.of(op)
    cores = None if shape is None else AttentionCores.of(op, shape)
    if shape is None or cores is None:
        return None
    stored = STORED[op.inputs[shape.values.input].dtype.name]
    if cores.groups and not shape.slice:
        shape = dataclasses.replace(shape, maps=_maps(op, shape, cores.values.columns))
    arguments = [stored, *cores.names(), constant(shape)]
    # Of few rows of float32 the assembler would spill registers to make room for a fifth block.
    blocks = 3 if cores.scores.rows == 16 and op.inputs[shape.values.input].dtype.itemsize == 4 else 0
    functions = f"{_score(op, logits)}\n{_store(op)}"
    return Kernel("AttentionTile", arguments, shape.run, functions, maps=bool(shape.maps), blocks=blocks)


def _score(op: Op, logits: BlockProgram) -> str:
    """A function `score`: the first product's program on a sum, then what the softmax takes."""
    attrs, scores = op.attrs, parts_of(whole_of(op))[0]
    at = [f"at[{axis}]" for axis in range(len(attrs.shape))]
    lines, result = [], "own"
    if scores.program is not None:
        inner, (result,) = statements(scores.program, ["own", *(load(op, k, at) for k in range(2, attrs.scores_inputs))])
        lines += ["uint32_t scored;", "{", *inner, f"scored = {result};", "}"]
        result = "scored"
    # Numbers of the row program's inputs among those of the op.
    numbers = [attrs.scores_inputs + k - (k > attrs.rows_chained) for k in range(attrs.rows_inputs)]
    registers = [result if k == attrs.rows_chained else load(op, number, at) for k, number in enumerate(numbers)]
    inner, (result,) = statements(logits, registers)
    return function("uint32_t score", ", uint32_t own", [*lines, *inner, f"return {result};"])


def _store(op: Op) -> str:
    """A function `store`: the last product's program on a weighted sum, then what ends an element of the op."""
    attrs, values = op.attrs, parts_of(whole_of(op))[2]
    at = [f"at[{axis}]" for axis in range(len(op.output.shape))]
    lines, result = [], "own"
    if values.program is not None:
        first = attrs.scores_inputs + attrs.rows_inputs
        extras = [load(op, first + k, at) for k in range(len(values.inputs) - 2)]
        lines, (result,) = statements(values.program, ["own", *extras])
    return function("void store", ", uint32_t own", [*lines, f"finish(buffers, at, {result});"])

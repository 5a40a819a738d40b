"""Random small Programs of every op family over random views, and which elements each element of them depends on."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ir.view import View
from aspen_jax.ops import windows
from aspen_jax.ops.arg_reduce import ARG_REDUCE, ArgReduceAttrs
from aspen_jax.ops.attention import ATTENTION, parts_of
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import BlockProgram, Instruction, single
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.concatenate import CONCATENATE, ConcatenateAttrs
from aspen_jax.ops.conv import CONV2D, ConvAttrs
from aspen_jax.ops.conv_panels import CONV2D_PANELS, ConvPanelsAttrs
from aspen_jax.ops.cumulative import CUMULATIVE, CumulativeAttrs
from aspen_jax.ops.family import OpFamily
from aspen_jax.ops.gather import GATHER, GatherAttrs
from aspen_jax.ops.matmul import MATMUL, MATMUL_PANELS, PANEL, MatmulAttrs, MatmulPanelsAttrs, panels_shape
from aspen_jax.ops.pad import PAD, PadAttrs
from aspen_jax.ops.pool import POOL, PoolAttrs
from aspen_jax.ops.ragged_dot import RAGGED_DOT
from aspen_jax.ops.reduce import REDUCE, ReduceAttrs
from aspen_jax.ops.row_program import NUMBER, ROW, RowProgram, Stage
from aspen_jax.ops.rows import ROWS, RowsAttrs
from aspen_jax.ops.scatter import SCATTER, ScatterAttrs
from aspen_jax.ops.select_windows import SELECT_AND_GATHER_ADD, SELECT_AND_SCATTER_ADD, SelectWindowsAttrs
from aspen_jax.ops.sort import SORT, SortAttrs
from aspen_jax.passes import attention, in_place, outputs

_LARGEST = 240
_FLOAT = np.dtype(np.float32)


class _Author:
    """Writes one random program."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.build = Builder()
        self.inputs: list[Value] = []
        self.known = [self.input(self.shape()) for _ in range(self.rng.integers(1, 3))]

    def integer(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def shape(self) -> tuple[int, ...]:
        return tuple(self.integer(1, 6) for _ in range(self.integer(0, 4)))

    def input(self, shape: tuple[int, ...]) -> Operand:
        self.inputs.append(Value(shape, _FLOAT))
        return Operand.whole(self.inputs[-1])

    def operand(self, rank: int | None = None) -> Operand:
        """Something known, through a random view."""
        # Late results first, so that programs are deep as well as wide.
        operand = self.known[-1 - min(int(self.rng.geometric(0.5)) - 1, len(self.known) - 1)]
        for _ in range(self.integer(0, 2)):
            operand = self.viewed(operand)
        while operand.view.rank != rank and rank is not None:
            operand = self.reshaped(operand, rank)
        return operand

    def viewed(self, operand: Operand) -> Operand:
        view, rank = operand.view, operand.view.rank
        kind = self.integer(0, 4)
        if kind == 0:
            view = view.transpose(tuple(self.rng.permutation(rank).tolist()))
        elif kind == 1 and 0 not in view.shape:
            starts = [self.integer(0, extent - 1) for extent in view.shape]
            limits = [self.integer(start + 1, extent) for start, extent in zip(starts, view.shape, strict=True)]
            view = view.slice(starts, limits, [self.integer(1, 2) for _ in starts])
        elif kind == 2:
            view = view.reverse([axis for axis in range(rank) if self.integer(0, 1)])
        elif kind == 3 and rank < 4:
            axis = self.integer(0, rank)
            shape = (*view.shape[:axis], self.integer(1, 3), *view.shape[axis:])
            view = view.broadcast_in_dim(shape, [d for d in range(rank + 1) if d != axis])
        else:
            return self.reshaped(operand, self.integer(1, 4))
        return Operand(operand.value, view)

    def reshaped(self, operand: Operand, rank: int) -> Operand:
        size = math.prod(operand.shape)
        shape = []
        for _ in range(rank - 1):
            shape.append(int(self.rng.choice([f for f in range(1, size + 1) if size % f == 0] or [1])))
            size //= shape[-1]
        shape = tuple(self.rng.permutation([*shape, size]).tolist())
        view = operand.view.reshape(shape)
        if view is None:
            operand = self.build.copy(operand)
            view = operand.view.reshape(shape)
            assert view is not None
        return Operand(operand.value, view)

    def step(self) -> Operand | None:
        kind = self.integer(0, 18)
        if kind == 0:
            x = self.operand(4)
            groups = int(self.rng.choice([g for g in range(1, x.shape[3] + 1) if x.shape[3] % g == 0] or [1]))
            window = (self.integer(1, 3), self.integer(1, 3))
            pad = [self.integer(-1, 2) for _ in range(4)]
            attrs = ConvAttrs((self.integer(1, 3), self.integer(1, 2)), tuple(pad), (self.integer(1, 2), 1), groups)
            if groups == 1 and self.integer(0, 1):
                columns = self.integer(1, 70)
                w = self.input((-(-columns // PANEL), *window, x.shape[3], PANEL))
                scales = []
                if x.shape[3] > 1 and self.integer(0, 1):
                    scale = self.input((x.shape[0], x.shape[3])).value
                    view = View.from_flat(scale.size, 0, (x.shape[3], 0, 0, 1), x.shape)
                    scales = [] if view is None else [Operand(scale, view)]
                in_panels = ConvPanelsAttrs(attrs.strides, attrs.padding, attrs.dilation, 1, columns, bool(scales))
                return self.op(CONV2D_PANELS, in_panels, [x, w, *scales])
            return self.op(CONV2D, attrs, [x, self.input((*window, x.shape[3] // groups, groups * self.integer(1, 3)))])
        if kind == 1:
            return self.product(self.operand())
        if kind == 2:
            x = self.operand(self.integer(1, 4))
            draw = [
                tuple(self.integer(low, high) for _ in x.shape)
                for low, high in ((1, 3), (1, 2), (-1, 2), (-1, 2), (1, 2), (1, 2))
            ]
            return self.op(POOL, PoolAttrs(windows.SUM, *draw), [x])
        if kind == 3:
            x = self.operand()
            return self.op(REDUCE, ReduceAttrs(windows.SUM, tuple(d for d in range(x.view.rank) if self.integer(0, 1))), [x])
        if kind == 4:
            x = self.operand(self.integer(1, 4))
            axis = self.integer(0, x.view.rank - 1)
            pieces = [x, Operand(x.value, x.view.reverse((axis,)))]
            other = self.operand(x.view.rank)
            if all(m == n for d, (m, n) in enumerate(zip(other.shape, x.shape, strict=True)) if d != axis):
                pieces.append(other)
            return self.op(CONCATENATE, ConcatenateAttrs(axis), pieces)
        if kind == 5:
            x = self.operand()
            low, high, inner = (tuple(self.integer(a, b) for _ in x.shape) for a, b in ((-1, 2), (-1, 2), (0, 2)))
            return self.op(PAD, PadAttrs(low, high, inner), [x, self.input(())])
        if kind == 6:
            return self.gather()
        if kind == 18:
            return self.ragged_product(self.operand(self.integer(2, 4)))
        if kind == 17:
            x = self.operand(self.integer(1, 4))
            axis = self.integer(0, x.view.rank - 1)
            return self.op(SORT, SortAttrs(axis, self.integer(min(1, x.shape[axis]), x.shape[axis]), gives_order=False), [x])
        if kind == 16:
            return self.selecting_windows()
        if kind > 12:
            return self.update()
        if kind == 7:
            x = self.operand(self.integer(1, 4))
            attrs = CumulativeAttrs(windows.SUM, self.integer(0, x.view.rank - 1), bool(self.integer(0, 1)))
            return self.op(CUMULATIVE, attrs, [x])
        if kind == 9:
            x = self.operand(self.integer(1, 4))
            y = next((item for item in (self.operand() for _ in range(3)) if item.shape == x.shape), x)
            axes = tuple(d for d in range(x.view.rank) if self.integer(0, 1)) or (self.integer(0, x.view.rank - 1),)
            return self.op(ROWS, RowsAttrs(axes, _sums(self.integer(ROW, NUMBER))), [x, y])
        if kind == 10:
            return self.attention()
        if kind == 12:
            return self.panels_product(self.operand(self.integer(1, 3)))
        if kind == 11:
            x = self.operand(self.integer(1, 4))
            found = self.op(ARG_REDUCE, ArgReduceAttrs(windows.MAX, self.integer(0, x.view.rank - 1)), [x])
            return found and self.build.block(single("f_from_i"), [found], found.shape, _FLOAT)
        x = self.operand()
        y = next((item for item in (self.operand() for _ in range(3)) if item.shape == x.shape), x)
        if not self.integer(0, 2):
            return self.build.block(single("add_f"), [x, y], x.shape, _FLOAT)
        # The sum, the first input as it is, and the square of the sum.
        program = BlockProgram(2, (), (Instruction("add_f", (0, 1)), Instruction("mul_f", (2, 2))), 2, (0, 3))
        results = [Value(x.shape, _FLOAT) for _ in range(3)]
        self.build.ops.append(Op(BLOCK, None, (x, y), results[0], program, further=tuple(results[1:])))
        if math.prod(x.shape) <= _LARGEST:
            self.known += map(Operand.whole, results[1:])
        return Operand.whole(results[0])

    def selecting_windows(self) -> Operand | None:
        """Windows that choose elements of something, which give or get what is chosen."""
        x = self.operand(self.integer(1, 4))
        sizes, steps, low, high = (tuple(self.integer(a, b) for _ in x.shape) for a, b in ((1, 3), (1, 3), (0, 2), (0, 2)))
        steps = tuple(map(min, sizes, steps))  # no gaps, so that what a box reads is one
        attrs = SelectWindowsAttrs(self.integer(windows.MAX, windows.MIN), sizes, steps, low, high)
        if self.integer(0, 1):
            return self.op(SELECT_AND_GATHER_ADD, attrs, [self.input(x.shape), x])
        return self.op(SELECT_AND_SCATTER_ADD, attrs, [self.input(attrs.windows(x.shape)), x])

    def gather(self) -> Operand | None:
        """Windows of something, at points of an index of rank 0 to 2."""
        x = self.operand(self.integer(1, 4))
        indexed = [axis for axis in range(x.view.rank) if self.integer(0, 1)] or [0]
        components = [indexed.index(axis) if axis in indexed else -1 for axis in range(x.view.rank)]
        sizes = [self.integer(1, extent) if extent else 0 for extent in x.shape]
        kept = [axis for axis, size in enumerate(sizes) if size != 1 or self.integer(0, 1)]
        rank = len(kept) + self.integer(0, 2)
        windows = sorted(self.rng.permutation(rank)[: len(kept)].tolist())
        walks = [windows[kept.index(axis)] if axis in kept else -1 for axis in range(x.view.rank)]
        points = tuple(axis for axis in range(rank) if axis not in windows)
        index = self.input(tuple(self.integer(1, 4) for _ in points))
        integers = Operand(Value(index.shape, np.dtype(np.int32)), index.view)
        self.inputs[-1] = integers.value
        indices = [integers] * len(indexed)
        if self.integer(0, 1):
            attrs = GatherAttrs(tuple(walks), tuple(components), tuple(sizes), points, bool(self.integer(0, 1)))
            return self.op(GATHER, attrs, [x, *indices])
        # The other way round: windows of these sizes are laid on x.
        lengths = dict(zip(points, index.shape, strict=True)) | {walks[axis]: sizes[axis] for axis in kept}
        if 0 in x.shape:
            return None
        starts = [
            0 if component >= 0 else self.integer(0, extent - size)
            for component, extent, size in zip(components, x.shape, sizes, strict=True)
        ]
        updates = self.input(tuple(lengths[axis] for axis in range(rank)))
        attrs = ScatterAttrs(1, tuple(walks), tuple(components), tuple(starts), points, bool(self.integer(0, 1)))
        return self.op(SCATTER, attrs, [x, updates, *indices])

    def update(self) -> Operand | None:
        """A window laid on something known, as it is or reshaped: what may be done in place."""
        x = self.known[-1 - min(int(self.rng.geometric(0.4)) - 1, len(self.known) - 1)]
        kind = self.integer(0, 5)
        if kind == 0:
            x = self.reshaped(x, self.integer(1, 3))
        elif kind == 1:
            x = self.input(self.shape())
        if 0 in x.shape:
            return None
        window = tuple(self.integer(1, extent) for extent in x.shape)
        moved = [axis for axis in range(len(window)) if self.integer(0, 1)]
        self.inputs += [Value((), np.dtype(np.int32)) for _ in moved]
        starts = [Operand.whole(value) for value in self.inputs[len(self.inputs) - len(moved) :]]
        components = [moved.index(axis) if axis in moved else -1 for axis in range(len(window))]
        known = [
            0 if axis in moved else self.integer(0, extent - size)
            for axis, (extent, size) in enumerate(zip(x.shape, window, strict=True))
        ]
        others = [item for item in (self.operand() for _ in range(4)) if item.shape == window and item.value is not x.value]
        updates = others[0] if others else self.input(window)
        attrs = ScatterAttrs(self.integer(0, 1), tuple(range(len(window))), tuple(components), tuple(known), ())
        return self.op(SCATTER, attrs, [x, updates, *starts])

    def product(self, a: Operand) -> Operand | None:
        """Some dimensions of `a` are summed, some shared, some its own; the other operand has some more."""
        kinds = self.rng.choice(["summed", "batch", "free"], a.view.rank)
        kept = [d for d in range(a.view.rank) if kinds[d] != "summed"]
        rank = len(kept) + self.integer(0, 2)
        order = self.rng.permutation(rank).tolist()
        a_labels = [0] * a.view.rank
        sizes: dict[int, int] = {}
        for d, label in zip(kept, order, strict=False):
            a_labels[d] = label
        for j, d in enumerate(d for d in range(a.view.rank) if kinds[d] == "summed"):
            a_labels[d] = -1 - j
        sizes = dict(zip(a_labels, a.shape, strict=True))
        sizes |= {label: self.integer(1, 4) for label in order[len(kept) :]}
        own = {a_labels[d] for d in kept if kinds[d] == "free"}
        b_labels = [int(label) for label in self.rng.permutation([label for label in sizes if label not in own])]
        b = self.input(tuple(sizes[label] for label in b_labels))
        return self.op(MATMUL, MatmulAttrs(tuple(a_labels), tuple(b_labels)), [a, b])

    def panels_product(self, a: Operand) -> Operand | None:
        """Some dimensions of `a` are summed in any order; the other operand has one or two more and is in panels."""
        kinds = self.rng.choice(["summed", "free"], a.view.rank)
        free = [d for d in range(a.view.rank) if kinds[d] == "free"]
        summed = self.rng.permutation([d for d in range(a.view.rank) if kinds[d] == "summed"]).tolist()
        labels = [0] * a.view.rank
        for label, d in enumerate(self.rng.permutation(free).tolist()):
            labels[d] = label
        for j, d in enumerate(summed):
            labels[d] = -1 - j
        columns = (self.integer(1, 3), self.integer(20, 40)) if self.integer(0, 1) else (self.integer(20, 80),)
        shape = (*(a.shape[d] for d in summed), *columns)
        if 0 in shape:
            return None
        b_labels = (*(labels[d] for d in summed), *range(len(free), len(free) + len(columns)))
        attrs = MatmulPanelsAttrs(tuple(labels), b_labels, shape)
        return self.op(MATMUL_PANELS, attrs, [a, self.input(panels_shape(attrs))])

    def ragged_product(self, rows: Operand) -> Operand | None:
        """Rows in groups by matrices of theirs."""
        *batch, _, depth = rows.shape
        groups = self.integer(1, 3)
        matrices = self.input((*batch, groups, depth, self.integer(1, 5)))
        self.inputs.append(Value((*batch, groups), np.dtype(np.int32)))
        return self.op(RAGGED_DOT, None, [rows, matrices, Operand.whole(self.inputs[-1])])

    def attention(self) -> Operand | None:
        """A product of queries and keys, a row program on it and another input, and a product of that and values."""
        queries, width = self.operand(self.integer(2, 4)), self.integer(1, 3)
        *outer, count, _ = queries.shape
        length = self.integer(2, 5)
        if not 0 < math.prod(outer) * count * max(length, width) <= _LARGEST:
            return None
        batch = len(outer)
        inner, summed = (*range(batch), batch), -1
        keys = self.input((*outer, length, queries.shape[-1]))
        labels = MatmulAttrs((*inner, summed), (*range(batch), batch + 1, summed))
        scores = self.build.op(MATMUL, labels, [queries, keys])
        rows = [scores, self.input(scores.shape)]
        weights = self.build.op(ROWS, RowsAttrs((batch + 1,), _sums(ROW)), rows if self.integer(0, 1) else rows[::-1])
        values = self.input((*outer, length, width))
        labels = MatmulAttrs((*inner, summed), (*range(batch), summed, batch + 1))
        return self.op(MATMUL, labels, [weights, values])

    def op(self, family, attrs, inputs) -> Operand | None:
        shape, _ = family.infer(attrs, [(item.shape, item.dtype) for item in inputs])
        if not 0 < math.prod(shape) <= _LARGEST:
            return None
        if not family.takes_epilogue or self.integer(0, 1):
            return self.build.op(family, attrs, inputs)
        extra = next((item for item in (self.operand() for _ in range(3)) if item.shape == shape), self.input(shape))
        self.build.ops.append(Op(family, attrs, (*inputs, extra), Value(shape, _FLOAT), single("add_f")))
        return Operand.whole(self.build.ops[-1].output)

    def program(self, steps: int, rewrites: bool) -> Program:
        while len(self.build.ops) < steps:
            result = self.step()
            if result is not None and math.prod(result.shape) <= _LARGEST:
                self.known.append(result)
        ops = [dataclasses.replace(op, name=f"{op.family.name}{k}") for k, op in enumerate(self.build.ops)]
        earlier = ((op, value) for op in ops[:-1] for value in op.outputs)
        kept = [value for op, value in earlier if not self.integer(0, 1 if op.family is SCATTER else 4)]
        results = [*ops[-1].outputs, *kept]
        program = Program(tuple(self.inputs), (), tuple(ops), tuple(map(Operand.whole, results)))
        program = outputs.run(attention.run(program))
        return in_place.run(program) if rewrites else program


def _sums(kind: int) -> RowProgram:
    """The sum of two inputs along each row, for each of its elements or once."""
    return RowProgram(2, (Stage(windows.SUM, _FLOAT, single("add_f")), Stage(kind, _FLOAT, BlockProgram(3, (), (), 2))))


def random_program(seed: int, steps: int = 8, rewrites: bool = True) -> Program:
    """The same seed gives the same program; `rewrites`: ops rewrite their operands in place, where they may."""
    return _Author(seed).program(steps, rewrites)


def elements_read(op: Op, index: int) -> np.ndarray:
    """Which elements of input `index`'s value each output element depends on: bool [output size, value size]."""
    if op.family is ATTENTION:
        return _elements_through_parts(op, index)
    view = op.inputs[index].view
    seen = np.zeros((op.output.size, math.prod(view.shape)), bool)
    if index >= op.family.num_main(op):
        seen |= np.eye(op.output.size, dtype=bool)
    else:
        at = np.indices(op.output.shape).reshape(len(op.output.shape), op.output.size)
        for index_read, exists in _ELEMENTS[op.family](op, index, at):
            rows = np.flatnonzero(exists)
            columns = np.ravel_multi_index(tuple(index_read[:, rows]), view.shape) if view.shape else np.zeros(len(rows), int)
            seen[rows, columns] = True
    elements = view.gather(np.arange(op.inputs[index].value.size)).reshape(-1)
    result = np.zeros((op.output.size, op.inputs[index].value.size), bool)
    rows, columns = np.nonzero(seen)
    result[rows, elements[columns]] = True
    return result


def _elements_through_parts(op: Op, index: int) -> np.ndarray:
    """What is read by the part that has the input, of that what the next part reads, and so on."""
    attrs, parts = op.attrs, parts_of(op)
    own = [
        [place for place in range(len(part.inputs)) if place != chained]
        for part, chained in zip(parts, (attrs.scores_chained, attrs.rows_chained, attrs.values_chained), strict=True)
    ]
    reader, place = [(number, place) for number, places in enumerate(own) for place in places][index]
    read = elements_read(parts[reader], place)
    for part, chained in list(zip(parts, (-1, attrs.rows_chained, attrs.values_chained), strict=True))[reader + 1 :]:
        read = elements_read(part, chained) @ read
    return read


# Each of these yields (index in the input's view, whether it exists) for all output elements `at` at once, one element that
# they depend on after the other.
_Reads = Iterator[tuple[np.ndarray, np.ndarray]]


def _conv_elements(op: Op, index: int, at: np.ndarray) -> _Reads:
    attrs, (_, height, width, _) = op.attrs, op.inputs[0].shape
    kernel_height, kernel_width, channels, features = (CONV2D_PANELS if op.family is CONV2D_PANELS else CONV2D).kernel_shape(op)
    for ky, kx, c in itertools.product(range(kernel_height), range(kernel_width), range(channels)):
        y = at[1] * attrs.strides[0] - attrs.padding[0] + ky * attrs.dilation[0]
        x = at[2] * attrs.strides[1] - attrs.padding[2] + kx * attrs.dilation[1]
        exists = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        group = at[3] // (features // attrs.groups)
        if index != 1:
            yield np.stack([at[0], y, x, group * channels + c]), exists
            continue
        kernel = [np.full_like(y, ky), np.full_like(y, kx), np.full_like(y, c)]
        if op.family is CONV2D_PANELS:
            yield np.stack([at[3] // PANEL, *kernel, at[3] % PANEL]), exists
        else:
            yield np.stack([*kernel, at[3]]), exists


def _matmul_elements(op: Op, index: int, at: np.ndarray) -> _Reads:
    labels = (op.attrs.a, op.attrs.b)[index]
    extents = {label: extent for label, extent in zip(labels, op.inputs[index].shape, strict=True) if label < 0}
    for summed in itertools.product(*map(range, extents.values())):
        inner = dict(zip(extents, summed, strict=True))
        position = [np.full(at.shape[1], inner[label]) if label < 0 else at[label] for label in labels]
        yield np.array(position, int).reshape(len(labels), at.shape[1]), np.ones(at.shape[1], bool)


def _matmul_panels_elements(op: Op, index: int, at: np.ndarray) -> _Reads:
    if index == 0:
        yield from _matmul_elements(op, 0, at)
        return
    own = [(label, extent) for label, extent in zip(op.attrs.b, op.attrs.shape, strict=True) if label >= 0]
    column = np.zeros(at.shape[1], int)
    for label, extent in own:
        column = column * extent + at[label]
    for row in range(op.inputs[1].shape[1]):
        yield np.stack([column // PANEL, np.full_like(column, row), column % PANEL]), np.ones(at.shape[1], bool)


def _ragged_dot_elements(op: Op, index: int, at: np.ndarray) -> _Reads:
    """A row may be in any group."""
    *batch, row, column = at
    groups, depth = op.inputs[1].shape[-3:-1]
    for group, k in itertools.product(range(groups), range(depth)):
        g, inner = np.full_like(row, group), np.full_like(row, k)
        position = ([row, inner], [g, inner, column], [g])[index]
        yield np.stack([*batch, *position]), np.ones(at.shape[1], bool)


def _pool_elements(op: Op, index: int, at: np.ndarray) -> _Reads:
    attrs, shape = op.attrs, np.array(op.inputs[index].shape, int).reshape(-1, 1)
    strides, low, base, step = (
        np.array(entries, int).reshape(-1, 1)
        for entries in (attrs.strides, attrs.padding_lo, attrs.base_dilation, attrs.window_dilation)
    )
    for offset in itertools.product(*map(range, attrs.window)):
        dilated = at * strides - low + np.array(offset, int).reshape(-1, 1) * step
        position = dilated // base
        yield position, ((dilated % base == 0) & (position >= 0) & (position < shape)).all(axis=0)


def _selected_elements(op: Op, index: int, at: np.ndarray) -> _Reads:
    """Of select_and_gather_add: a window's elements, of which any may be chosen."""
    attrs, shape = op.attrs, np.array(op.inputs[index].shape, int).reshape(-1, 1)
    strides, low = (np.array(entries, int).reshape(-1, 1) for entries in (attrs.strides, attrs.padding_lo))
    for offset in itertools.product(*map(range, attrs.window)):
        position = at * strides - low + np.array(offset, int).reshape(-1, 1)
        yield position, ((position >= 0) & (position < shape)).all(axis=0)


def _scattering_elements(op: Op, index: int, at: np.ndarray) -> _Reads:
    """Of select_and_scatter_add: all windows that hold the element, and theirs of x."""
    attrs, shape = op.attrs, np.array(op.inputs[0].shape, int).reshape(-1, 1)
    strides, low = (np.array(entries, int).reshape(-1, 1) for entries in (attrs.strides, attrs.padding_lo))
    for offset in itertools.product(*map(range, attrs.window)):
        first = at + low - np.array(offset, int).reshape(-1, 1)
        window = first // strides
        holds = ((first % strides == 0) & (window >= 0) & (window < shape)).all(axis=0)
        if index == 0:
            yield window, holds
        else:
            for position, exists in _selected_elements(op, 1, window):
                yield position, exists & holds


def _reduce_elements(op: Op, index: int, at: np.ndarray) -> _Reads:
    shape, axes = op.inputs[index].shape, op.attrs.axes
    for reduced in itertools.product(*(range(shape[axis]) for axis in axes)):
        position = np.empty((len(shape), at.shape[1]), int)
        position[[d for d in range(len(shape)) if d not in axes]] = at
        position[list(axes)] = np.array(reduced, int).reshape(-1, 1)
        yield position, np.ones(at.shape[1], bool)


def _arg_reduce_elements(op: Op, index: int, at: np.ndarray) -> _Reads:
    for along in range(op.inputs[index].shape[op.attrs.axis]):
        yield np.insert(at, op.attrs.axis, along, axis=0), np.ones(at.shape[1], bool)


def _sort_elements(op: Op, index: int, at: np.ndarray) -> _Reads:
    for along in range(op.inputs[index].shape[op.attrs.axis]):
        position = at.copy()
        position[op.attrs.axis] = along
        yield position, np.ones(at.shape[1], bool)


def _rows_elements(op: Op, index: int, at: np.ndarray) -> _Reads:
    shape, axes = op.inputs[index].shape, op.attrs.axes
    kept = [d for d in range(len(shape)) if d not in axes]
    for along in itertools.product(*(range(shape[axis]) for axis in axes)):
        position = np.empty((len(shape), at.shape[1]), int)
        position[kept] = at[kept] if op.attrs.rows.gives_rows else at
        position[list(axes)] = np.array(along, int).reshape(-1, 1)
        yield position, np.ones(at.shape[1], bool)


def _concatenate_elements(op: Op, index: int, at: np.ndarray) -> _Reads:
    axis = op.attrs.axis
    position = at.copy()
    position[axis] -= sum(piece.shape[axis] for piece in op.inputs[:index])
    yield position, (position[axis] >= 0) & (position[axis] < op.inputs[index].shape[axis])


def _pad_elements(op: Op, index: int, at: np.ndarray) -> _Reads:
    low, step = np.array(op.attrs.lo, int).reshape(-1, 1), np.array(op.attrs.interior, int).reshape(-1, 1) + 1
    position = (at - low) // step
    extent = np.array(op.inputs[0].shape, int).reshape(-1, 1)
    inside = (((at - low) % step == 0) & (position >= 0) & (position < extent)).all(axis=0)
    yield (position, inside) if index == 0 else (at[:0], ~inside)


def _gather_elements(op: Op, index: int, at: np.ndarray) -> _Reads:
    """Any start may be read, so an element depends on all that its window could hold."""
    attrs: GatherAttrs = op.attrs
    exists = np.ones(at.shape[1], bool)
    if index > 0:
        yield at[list(attrs.index_axes)], exists
        return
    moved = [axis for axis, component in enumerate(attrs.components) if component >= 0]
    for starts in itertools.product(*(range(op.inputs[0].shape[axis]) for axis in moved)):
        position = np.stack([at[walk] if walk >= 0 else np.zeros_like(exists, int) for walk in attrs.walks])
        position[moved] = np.array(starts, int).reshape(-1, 1)
        yield position, exists


def _cumulative_elements(op: Op, index: int, at: np.ndarray) -> _Reads:
    axis = op.attrs.axis
    for along in range(op.output.shape[axis]):
        position = at.copy()
        position[axis] = along
        yield position, at[axis] <= along if op.attrs.reverse else at[axis] >= along


def _scatter_elements(op: Op, index: int, at: np.ndarray) -> _Reads:
    """An element may be met by the windows of all points, with any start along an axis that has a component."""
    attrs: ScatterAttrs = op.attrs
    exists = np.ones(at.shape[1], bool)
    if index == 0:
        yield at, exists
        return
    updates = op.inputs[1].shape
    free = [axis for axis in range(len(updates)) if axis not in attrs.walks]
    moved = [axis for axis, component in enumerate(attrs.components) if component >= 0]
    walked = [attrs.walks[axis] for axis in moved if attrs.walks[axis] >= 0]
    position = np.zeros((len(updates), at.shape[1]), int)
    for axis, (walk, component, start) in enumerate(zip(attrs.walks, attrs.components, attrs.starts, strict=True)):
        if component >= 0:
            continue
        size = updates[walk] if walk >= 0 else 1
        if index == 1:
            exists &= (at[axis] >= start) & (at[axis] < start + size)
        if walk >= 0:
            position[walk] = np.clip(at[axis] - start, 0, max(size - 1, 0))
    for point in itertools.product(*(range(updates[axis]) for axis in free + walked)):
        position[free + walked] = np.array(point, int).reshape(-1, 1)
        yield position if index == 1 else position[list(attrs.index_axes)], exists


_ELEMENTS: dict[OpFamily, Callable[[Op, int, np.ndarray], _Reads]] = {
    CONV2D: _conv_elements,
    CONV2D_PANELS: _conv_elements,
    MATMUL: _matmul_elements,
    MATMUL_PANELS: _matmul_panels_elements,
    RAGGED_DOT: _ragged_dot_elements,
    POOL: _pool_elements,
    SELECT_AND_SCATTER_ADD: _scattering_elements,
    SELECT_AND_GATHER_ADD: _selected_elements,
    REDUCE: _reduce_elements,
    ARG_REDUCE: _arg_reduce_elements,
    ROWS: _rows_elements,
    CONCATENATE: _concatenate_elements,
    PAD: _pad_elements,
    GATHER: _gather_elements,
    SCATTER: _scatter_elements,
    CUMULATIVE: _cumulative_elements,
    SORT: _sort_elements,
}

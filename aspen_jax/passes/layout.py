"""Turns layout changes into views, and lets ops work in the layout that their data is in.

Ops that may write their output in any order of dimensions (products) first take that in which it is read. Then one sweep
in program order does both. A copy that only shows its operand through a view disappears into its readers where they read
well through the composed view. An op that does not care about the order of dimensions (element-wise ops, pooling,
reductions, ...) adopts the order in which most of its data lies, so the two transposes around an NCHW network meet and vanish.
"""

from __future__ import annotations

import math

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ir.view import MAX_RANK, View
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import COPY
from aspen_jax.ops.family import unpermuted
from aspen_jax.passes import storage


def run(program: Program) -> Program:
    """Forward views through the program."""
    sweep = _Sweep()
    for op in _written_as_read(program):
        sweep.visit(op)
    outputs = tuple(sweep.resolve(item) or item for item in program.outputs)
    return storage.with_known_weights(program.replace(ops=tuple(sweep.ops), outputs=outputs))


def _written_as_read(program: Program) -> list[Op]:
    """The ops, where those that only a transpose reads write the transpose, if they can."""
    uses = program.uses()
    written: dict[Op, Op] = {}  # readers first: whether they want an operand transposed depends on how they write
    dropped: set[Op] = set()
    for op in reversed(program.ops):
        written[op] = op
        copies, permutation = _only_transpose(op, uses)
        if permutation is None or op.program is not None:
            continue
        last = copies[-1]
        readers = [(reader and written[reader], index) for reader, index in uses.get(last.output, [])]
        if readers and all(reader is not None and reader.family.reads_across(reader, index) for reader, index in readers):
            continue
        attrs = op.family.written_as(op, permutation)
        if attrs is None:
            continue
        output = Value(tuple(op.output.shape[axis] for axis in permutation), op.output.dtype)
        dropped.update(copies[:-1])
        if output.shape == last.output.shape:
            dropped.add(last)
            output = last.output
        else:  # dimensions of one element come or go
            view = View.identity(output.shape).reshape(last.output.shape)
            assert view is not None, "all of a value is one walk"
            written[last] = _copy(Operand(output, view), last.output).replace(name=last.name, source=last.source)
        written[op] = op.replace(attrs=attrs, output=output)
    return [written[op] for op in program.ops if op not in dropped]


def _only_transpose(op: Op, uses: dict[Value, list[tuple[Op | None, int]]]) -> tuple[list[Op], tuple[int, ...] | None]:
    """Copies, one behind the other, that alone read an op and together transpose its output, and how; no copies, None."""
    copies: list[Op] = []
    found: tuple[list[Op], tuple[int, ...] | None] = ([], None)
    seen = Operand.whole(op.output)
    while (reader := _only_copy(uses.get(copies[-1].output if copies else op.output, []))) is not None:
        view = seen.view.compose(reader.inputs[0].view)
        if view is None:
            break
        copies.append(reader)
        seen = Operand(op.output, view)
        permutation = _order_of(seen)
        if permutation is not None and [axis for axis in permutation if op.output.shape[axis] > 1] != sorted(
            axis for axis in permutation if op.output.shape[axis] > 1
        ):
            found = [*copies], permutation
    return found


def _only_copy(uses: list[tuple[Op | None, int]]) -> Op | None:
    """The copy that is the only reader of a value."""
    reader = uses[0][0] if len(uses) == 1 else None
    if reader is None or reader.family is not BLOCK or reader.program is None or not reader.program.is_copy:
        return None
    return reader


def _order_of(operand: Operand) -> tuple[int, ...] | None:
    """The permutation by which the view transposes its value, whose dimensions of one element go first; None: it does more."""
    own = [axis for axis, extent in enumerate(operand.value.shape) if extent > 1]
    shape, strides = (operand.value.shape, View.identity(operand.value.shape).strides())
    places = {(shape[axis], strides[axis]): axis for axis in own}
    shown = zip(operand.shape, operand.view.strides(), strict=True)
    order = [places.get(dim) for dim in shown if dim[0] != 1]
    if operand.view.offset() != 0 or len(order) != len(own) or None in order or len({*order}) != len(own):
        return None
    units = [axis for axis, extent in enumerate(shape) if extent == 1]
    return (*units, *(axis for axis in order if axis is not None))


class _Sweep:
    """Ops written so far, and for values that are views of others what they are."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._meaning: dict[Value, Operand] = {}
        self._taken_apart: set[Value] = set()  # written by copies whose dimensions were cut

    def resolve(self, operand: Operand) -> Operand | None:
        """The operand without the copies behind it; None where no view can say it."""
        meaning = self._meaning.get(operand.value)
        if meaning is None:
            return operand
        view = meaning.view.compose(operand.view)
        if view is None:
            return None
        seen = Operand(meaning.value, view)
        return (self.resolve(seen) if seen.value in self._taken_apart else None) or seen

    def visit(self, op: Op) -> None:
        if op.family is BLOCK and op.program is not None and op.program.is_copy:
            op = self._refined(op)
        resolved = [self.resolve(item) for item in op.inputs]
        op = op.replace(inputs=tuple(new or self._written(old) for new, old in zip(resolved, op.inputs, strict=True)))
        if op.family is BLOCK and op.program is not None and op.program.is_copy:
            self._meaning[op.output] = op.inputs[0]
            self.ops.append(op)  # it stays for readers that no view serves; pruned if there are none
            return
        op = self._in_best_layout(op)
        count = op.family.num_main(op)
        inputs = [
            item if index >= count or op.family.reads_well(op, index, item) else self._copied(item, op)
            for index, item in enumerate(op.inputs)
        ]
        self.ops.append(op.replace(inputs=tuple(inputs)))

    def _refined(self, op: Op) -> Op:
        """A copy with dimensions cut in two where a walk along them crosses dimensions of a view behind it that repeats elements.

        So an upsampling of an upsampling reads what was there before them. Other ops keep their dimensions, which are those of
        the products that they may become the epilogue of.
        """
        (item,) = op.inputs
        seen = self.resolve(item) or item
        meaning, view = self._meaning.get(seen.value), seen.view.reshape(op.output.shape)
        if meaning is None or view is None or all(dim.source >= 0 or dim.extent == 1 for dim in meaning.view.dims):
            return op  # what repeats nothing is as well copied once
        shape = _cut(view, meaning.view.shape)
        if shape == op.output.shape or len(shape) > MAX_RANK:
            return op
        view = item.view.reshape(shape)
        if view is None:  # the walk begins in the middle of what is cut
            return op
        output = Value(shape, op.output.dtype)
        self._taken_apart.add(output)
        self._meaning[op.output] = Operand(output, View.identity(op.output.shape))
        return op.replace(inputs=(Operand(item.value, view),), output=output)

    def _written(self, operand: Operand) -> Operand:
        """The operand on a dense value that some op writes; written now if its meaning was only a view."""
        meaning = self._meaning[operand.value]
        if not any(op.output is operand.value for op in self.ops):
            self.ops.append(_copy(meaning, operand.value))
        return operand

    def _copied(self, operand: Operand, reader: Op) -> Operand:
        copy = _copy(operand, Value(operand.shape, operand.dtype)).replace(name=f"{reader.name}/copy", source=reader.source)
        for op in self.ops:  # the same copy may serve several readers
            if (
                op.family is BLOCK
                and op.inputs == copy.inputs
                and op.program == copy.program
                and op.output.shape == operand.shape
            ):
                return Operand.whole(op.output)
        self.ops.append(copy)
        return Operand.whole(copy.output)

    def _in_best_layout(self, op: Op) -> Op:
        return self._block_in_best_layout(op) if op.family is BLOCK else self._main_in_value_layout(op)

    def _block_in_best_layout(self, op: Op) -> Op:
        """A block op over the index space in which the most of its full-size inputs are whole."""
        full = [item for item in op.inputs if item.value.size == op.output.size and _is_bijective(item.view)]
        best, fewest = op, sum(not item.is_whole for item in full)
        chosen: Operand | None = None
        for lead in full:
            if lead.is_whole:
                continue
            inverse = _inverse(lead.view, lead.value.shape)
            views = [None if inverse is None else item.view.compose(inverse) for item in op.inputs]
            if any(view is None for view in views):
                continue
            inputs = tuple(Operand(item.value, view) for item, view in zip(op.inputs, views, strict=True) if view is not None)
            strided = sum(not item.is_whole for item in inputs if item.value.size == op.output.size and _is_bijective(item.view))
            if strided < fewest:
                best, fewest, chosen = op.replace(inputs=inputs, output=Value(lead.value.shape, op.output.dtype)), strided, lead
        if chosen is not None:
            self._meaning[op.output] = Operand(best.output, chosen.view)
        return best

    def _main_in_value_layout(self, op: Op) -> Op:
        if op.extra_inputs:
            return op
        permutations = [permutation_of(item) for item in op.main_inputs]
        if all(p is None or p == tuple(range(len(p))) for p in permutations) or None in permutations:
            return op
        change = op.family.permuted(op, [p for p in permutations if p is not None])
        if change is None:
            return op
        attrs, permutation = change
        output = Value(unpermuted(op.output.shape, permutation), op.output.dtype)
        self._meaning[op.output] = Operand(output, View.identity(output.shape).transpose(permutation))
        return op.replace(attrs=attrs, inputs=tuple(Operand.whole(item.value) for item in op.inputs), output=output)


def _cut(view: View, behind: tuple[int, ...]) -> tuple[int, ...]:
    """The view's shape, each dimension cut where a walk along it leaves a dimension of the dense tensor of shape `behind`."""
    units = [math.prod(behind[axis + 1 :]) for axis in range(len(behind))]
    cut: list[int] = []
    for extent, stride in zip(view.shape, view.strides(), strict=True):
        for unit in units:
            inner, rest = divmod(unit, abs(stride)) if stride else (extent, 1)
            if not rest and 1 < inner < extent and extent % inner == 0:
                cut.append(extent // inner)
                extent = inner
        cut.append(extent)
    return tuple(cut)


def _copy(operand: Operand, output: Value) -> Op:
    return Op(BLOCK, None, (operand,), output, COPY)


def _is_bijective(view: View) -> bool:
    """Whether the view shows every element of its value exactly once."""
    sizes = [dim.extent for dim in view.dims if dim.source >= 0]
    return all(dim.source >= 0 or dim.extent == 1 for dim in view.dims) and view.value_size == math.prod(sizes)


def _inverse(view: View, value_shape: tuple[int, ...]) -> View | None:
    """The inverse of a bijective view: it shows the value again from a dense copy of the view."""
    strides = [0] * len(view.base)
    offset, unit = 0, 1
    for dim in reversed(view.dims):
        if dim.source >= 0:
            strides[dim.source] = unit * dim.step
            offset += unit * (dim.extent - 1) if dim.step < 0 else 0
            unit *= dim.extent
    flat = View.from_flat(view.value_size, offset, strides, view.base)
    return None if flat is None else flat.reshape(value_shape)


def permutation_of(operand: Operand) -> tuple[int, ...] | None:
    """The permutation by which the view transposes its value, or None where it does more than that."""
    shape, strides = operand.value.shape, View.identity(operand.value.shape).strides()
    if len(operand.shape) != len(shape):
        return None
    free = list(range(len(shape)))
    permutation: list[int] = []
    for extent, stride in zip(operand.shape, operand.view.strides(), strict=True):
        axis = next((d for d in free if shape[d] == extent and strides[d] == stride), None)
        if axis is None:
            return None
        free.remove(axis)
        permutation.append(axis)
    transposed = View.identity(shape).transpose(permutation)
    return tuple(permutation) if transposed == operand.view else None

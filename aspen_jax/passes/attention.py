"""Runs product, row program and product depth-first, so that scores never exist as a whole (BrainSlug's stacks, with reductions).

Nothing is matched but the shape: a product whose only reader is a row program along its last axis, whose only reader is a
product that sums that axis. Scale, masks, biases, caps and softmax are whatever the row program and the epilogues hold. The pass
runs after `rows` and `epilogue`, which make these. Between them floats of 16 bits stay float32: they never leave the cache, and
where the jaxpr converts them, the programs round them.

One query a head is a row of its own for each product. It becomes attention only for machines of many places, where the pass
`split_depth` cuts its keys into slices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from aspen_jax.ir.dtypes import DTYPE_NUMBERS
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.attention import ATTENTION, AttentionAttrs
from aspen_jax.ops.family import OpFamily, unpermuted
from aspen_jax.ops.matmul import MATMUL, MatmulAttrs
from aspen_jax.ops.opcodes import lane_of
from aspen_jax.ops.rows import ROWS, RowsAttrs
from aspen_jax.passes.layout import permutation_of
from aspen_jax.passes.reach import reach_of

# Longer rows would not leave the cache anyway.
MAX_LENGTH = 1 << 20

# A tile has all columns of its rows: fewer rows than this keep workers idle, unless all are no more work than a tile.
MIN_ROWS = 8
MAX_SIZE_OF_FEW = 1 << 16

# Each tile reads all that its rows are multiplied with, as many columns as rows have elements, and then the output's. Where these
# are wider than the rows are long (as around the last norm of a language model) that costs more than storing the scores, unless
# all of it stays in the cache.
MAX_SIZE_OF_WIDE = 1 << 18


_Uses = Mapping[Value, Sequence[tuple[Op | None, int]]]


def run(program: Program, *, one_query: bool = False) -> Program:
    """One sweep over the last products, with `one_query` also over those of a single query a head."""
    uses = program.uses()
    producers = {op.output: op for op in program.ops}
    known: dict[Value, np.ndarray | Op] = {**producers, **dict(program.constants)}
    reaches: dict[object, tuple[int, int]] = {}
    ops: dict[Value, Op] = {}
    renamed: dict[Value, Value] = {}
    for op in program.ops:
        chain = _chain(op, producers, uses, one_query=one_query)
        # Where the output of one chain is the scores of the next (a product of softmaxes), only the first is made.
        if chain is not None and chain.scores_value in ops and chain.weights_value in ops:
            del ops[chain.scores_value], ops[chain.weights_value]
            renamed[op.output] = chain.values.output
            if (key := chain.key()) not in reaches:
                reaches[key] = reach_of(chain.scores, chain.rows, chain.rows_place, known)
            op = chain.op(*reaches[key])
        op = op.replace(inputs=_renamed(op.inputs, renamed))
        ops[op.output] = op
    return program.replace(ops=tuple(ops.values()), outputs=_renamed(program.outputs, renamed))


def _renamed(operands: tuple[Operand, ...], renamed: dict[Value, Value]) -> tuple[Operand, ...]:
    """The operands on new values that have the elements of the old ones in the same order, which views do not mind."""
    return tuple(Operand(renamed.get(item.value, item.value), item.view) for item in operands)


@dataclasses.dataclass(frozen=True)
class _Chain:
    """Three ops without dimensions of one element.

    Attributes:
        scores_value, weights_value: what two of the ops wrote before these were dropped.
        scores, rows, values: the ops; the last two read the value before them as a whole.
        rows_place, values_place: among which of their inputs.
    """

    scores_value: Value
    weights_value: Value
    scores: Op
    rows: Op
    rows_place: int
    values: Op
    values_place: int

    def key(self) -> object:
        """A key that is equal for chains that compute the same of their scores."""
        others = (item for index, item in enumerate(self.rows.inputs) if index != self.rows_place)
        return self.scores.output.shape, self.scores.program, self.scores.extra_inputs, self.rows.attrs, self.rows_place, *others

    @property
    def _batch(self) -> set[int]:
        return set(self.scores.attrs.a) & set(self.scores.attrs.b)

    @property
    def _is_one_query(self) -> bool:
        return len(self.scores.output.shape) - 2 in self._batch

    def fits(self, one_query: bool) -> bool:
        """Whether the scores are rows of the row program, by `one_query` also one row a head, and it pays to join the ops."""
        last = len(self.rows.output.shape) - 1
        are_rows = self.scores.output.shape == self.rows.output.shape and last not in self._batch
        return are_rows and (one_query or not self._is_one_query) and self._pays()

    def _pays(self) -> bool:
        *outer, length = self.rows.output.shape
        if length > MAX_LENGTH or (math.prod(outer) < MIN_ROWS and self.rows.output.size > MAX_SIZE_OF_FEW):
            return False
        own, other = (self.values.attrs.a, self.values.attrs.b)[:: -1 if self.values_place else 1]
        depth = _size(self.scores.inputs[0], self.scores.attrs.a, lambda label: label < 0)
        columns = _size(self.values.inputs[1 - self.values_place], other, lambda label: label >= 0 and label not in own)
        return depth + columns <= length or (depth + columns) * length <= MAX_SIZE_OF_WIDE

    def joined(self) -> _Chain:
        """The chain with a row program that reads the scores as a whole, in float32; with an axis of queries."""
        scores = self.scores.replace(output=_wide(self.scores.output))
        inputs = list(self.rows.inputs)
        inputs[self.rows_place] = Operand.whole(scores.output)
        chain = dataclasses.replace(self, scores=scores, rows=self.rows.replace(inputs=tuple(inputs)))
        return chain.with_a_query() if self._is_one_query else chain

    def with_a_query(self) -> _Chain:
        """The chain with an axis of one query before that of the keys."""
        last = len(self.scores.output.shape) - 1

        def wider(shape: tuple[int, ...]) -> tuple[int, ...]:
            return (*shape[:last], 1, *shape[last:])

        inputs, labels = [], []
        for item, own in zip(self.scores.main_inputs, (self.scores.attrs.a, self.scores.attrs.b), strict=True):
            has_keys = last in own
            inputs.append(item if has_keys else _shaped(item, (*item.shape, 1)))
            labels.append(tuple(last + 1 if label == last else label for label in own) + (() if has_keys else (last,)))
        scores = self.scores.replace(
            attrs=MatmulAttrs(*labels),
            inputs=(*inputs, *(_shaped(item, wider(item.shape)) for item in self.scores.extra_inputs)),
            output=Value(wider(self.scores.output.shape), self.scores.output.dtype),
        )
        inputs = [_shaped(item, wider(item.shape)) for item in self.rows.inputs]
        inputs[self.rows_place] = Operand.whole(scores.output)
        rows = self.rows.replace(
            attrs=RowsAttrs((last + 1,), self.rows.attrs.rows),
            inputs=tuple(inputs),
            output=Value(scores.output.shape, self.rows.output.dtype),
        )
        # It is the first of the output.
        labels = [[label + (label >= 0) for label in own] for own in (self.values.attrs.a, self.values.attrs.b)]
        labels[self.values_place].insert(last, 0)
        inputs = list(self.values.main_inputs)
        inputs[self.values_place] = Operand.whole(rows.output)
        values = self.values.replace(
            attrs=MatmulAttrs(*map(tuple, labels)),
            inputs=(*inputs, *(_shaped(item, (1, *item.shape)) for item in self.values.extra_inputs)),
            output=Value((1, *self.values.output.shape), self.values.output.dtype),
        )
        return dataclasses.replace(self, scores=scores, rows=rows, values=values)

    def op(self, reach: int, exponent: int) -> Op:
        """The three as one; `reach` and `exponent` are those of AttentionAttrs."""
        parts = (self.scores, self.rows, self.values)
        attrs = AttentionAttrs(
            self.scores.output.shape,
            DTYPE_NUMBERS[self.scores.output.dtype],
            DTYPE_NUMBERS[self.rows.output.dtype],
            len(self.scores.inputs),
            -1,
            tuple(MATMUL.params(self.scores)),
            len(self.rows.inputs),
            self.rows_place,
            tuple(ROWS.params(self.rows)),
            len(self.values.inputs),
            self.values_place,
            tuple(MATMUL.params(self.values)),
            reach,
            exponent,
        )
        rows = tuple(item for index, item in enumerate(self.rows.inputs) if index != self.rows_place)
        values = tuple(item for index, item in enumerate(self.values.inputs) if index != self.values_place)
        name = " + ".join(dict.fromkeys(part.name for part in parts))
        exact = any(part.exact for part in parts)
        inputs = (*self.scores.inputs, *rows, *values)
        return Op(ATTENTION, attrs, inputs, self.values.output, None, name, self.values.source, exact)


def _chain(values: Op, producers: dict[Value, Op], uses: _Uses, one_query: bool) -> _Chain | None:
    """The ops that end in the product `values`; None where it is not the end of such a chain."""
    if values.family is not MATMUL:
        return None
    for place, weights in enumerate(values.main_inputs):
        rows = _only_for(weights, ROWS, producers, uses)
        if rows is None:
            continue
        small_rows = _small_rows(rows)
        sums = _sums_of_rows(values, place, small_rows)
        if sums is None:
            continue
        for index, operand in enumerate(rows.inputs):
            scores = _only_for(operand, MATMUL, producers, uses)
            if scores is None or not operand.view.is_dense():
                continue
            chain = _Chain(scores.output, rows.output, _small_product(scores), small_rows, index, sums, place)
            if chain.fits(one_query):
                return chain.joined()
    return None


def _only_for(operand: Operand, family: OpFamily, producers: dict[Value, Op], uses: _Uses) -> Op | None:
    """The op of this family that computes the operand for no other reader."""
    op = producers.get(operand.value)
    return op if op is not None and op.family is family and len(uses[operand.value]) == 1 else None


def _sums_of_rows(values: Op, place: int, rows: Op) -> Op | None:
    """The product, small, over all of each row that the row program gives; None where it sums something else."""
    last = len(rows.output.shape) - 1
    product = _small_product(values)
    labels = _labels_of_value(product, place, rows.output)
    if labels is None or last < 1 or not rows.attrs.rows.gives_rows or rows.attrs.axes != (last,):
        return None
    if [axis for axis, label in enumerate(labels) if label < 0] != [last]:
        return None
    a, b = (product.attrs.a, labels) if place else (labels, product.attrs.b)
    inputs = list(product.inputs)
    inputs[place] = Operand.whole(rows.output)
    return product.replace(attrs=MatmulAttrs(a, b), inputs=tuple(inputs))


def _size(operand: Operand, labels: Sequence[int], counts: Callable[[int], bool]) -> int:
    """How many elements the dimensions have whose label counts."""
    return math.prod(extent for label, extent in zip(labels, operand.shape, strict=True) if counts(label))


def _without_units(shape: tuple[int, ...]) -> list[int]:
    """The dimensions of other than one element."""
    return [d for d, extent in enumerate(shape) if extent != 1]


def _kept(operand: Operand, dimensions: Sequence[int]) -> Operand:
    """The operand with these dimensions only; the others have one element."""
    return _shaped(operand, tuple(operand.shape[d] for d in dimensions))


def _shaped(operand: Operand, shape: tuple[int, ...]) -> Operand:
    """The operand with other dimensions of one element."""
    view = operand.view.reshape(shape)
    assert view is not None, "a dimension of one element needs no copy"
    return Operand(operand.value, view)


def _wide(value: Value) -> Value:
    """A value of this shape that holds what the kernel before computes."""
    return Value(value.shape, np.dtype(np.float32) if lane_of(value.dtype) == "f" else value.dtype)


def _small_rows(op: Op) -> Op:
    """The row program without dimensions of one element; only what gives rows has its input's shape."""
    shape = op.inputs[0].shape
    kept = _without_units(shape)
    axes = tuple(index for index, d in enumerate(kept) if d in op.attrs.axes)
    output = _wide(Value(tuple(shape[d] for d in kept), op.output.dtype))
    inputs = tuple(_kept(item, kept) for item in op.inputs)
    return op.replace(attrs=RowsAttrs(axes, op.attrs.rows.stored_as(output.dtype)), inputs=inputs, output=output)


def _small_product(op: Op) -> Op:
    """The product without dimensions of one element in its output."""
    kept = _without_units(op.output.shape)
    number = {label: index for index, label in enumerate(kept)}
    inputs, labels = [], []
    for item, own in zip(op.main_inputs, (op.attrs.a, op.attrs.b), strict=True):
        dimensions = [d for d, label in enumerate(own) if label < 0 or label in number]
        inputs.append(_kept(item, dimensions))
        labels.append(tuple(number.get(own[d], own[d]) for d in dimensions))
    inputs += [_kept(item, kept) for item in op.extra_inputs]
    output = Value(tuple(op.output.shape[d] for d in kept), op.output.dtype)
    return op.replace(attrs=MatmulAttrs(*labels), inputs=tuple(inputs), output=output)


def _labels_of_value(product: Op, place: int, value: Value) -> tuple[int, ...] | None:
    """The labels of `value` where the main input shows it transposed; None where it shows it otherwise."""
    permutation = permutation_of(Operand(value, product.inputs[place].view))
    return None if permutation is None else unpermuted((product.attrs.a, product.attrs.b)[place], permutation)

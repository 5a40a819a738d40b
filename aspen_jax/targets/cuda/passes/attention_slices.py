"""Attention as two ops: slices of its keys, and a row program that merges them (Dao et al., "Flash-Decoding", 2023).

A slice's sums were weighted by e^(logit - its own largest). Scaled by e^(its largest - the largest of all) they add up, as do the
sums of weights. A slice that is masked as a whole has -inf as its largest, and counts for nothing; where all are, the result is
NaN, as that of a softmax.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aspen_jax.ir.dtypes import DTYPE_NUMBERS
from aspen_jax.ir.program import Op, Operand, Value
from aspen_jax.ir.view import MAX_RANK, View
from aspen_jax.ops import windows
from aspen_jax.ops.attention import parts_of
from aspen_jax.ops.attention_slices import ATTENTION_SLICES, NUMBERS, AttentionSlicesAttrs
from aspen_jax.ops.block_program import BlockBuilder, Ref
from aspen_jax.ops.matmul import MATMUL, MatmulAttrs
from aspen_jax.ops.row_program import NUMBER, ROW, RowProgram, Stage
from aspen_jax.ops.rows import ROWS, RowsAttrs
from aspen_jax.ops.softmax import softmax_of

_FLOAT = np.dtype(np.float32)


def sliced(op: Op, slices: int) -> tuple[Op, Op] | None:
    """Attention as so many slices and their merge; None where it is no softmax or cannot be cut so."""
    _, rows, values = parts_of(op)
    logits = softmax_of(rows.attrs.rows)
    *outer, length = op.attrs.shape
    last, place = len(outer), op.attrs.values_chained
    labels = (values.attrs.a, values.attrs.b)
    columns = [label for label in labels[1 - place] if label >= 0 and label not in labels[place]]
    if logits is None or len(columns) != 1 or last + 2 > MAX_RANK:
        return None
    # The output's axes in the order of the scores', then columns.
    order = [label for label in labels[place] if label >= 0] + columns
    product = values.replace(
        attrs=MatmulAttrs(*(tuple(order.index(label) if label >= 0 else -1 for label in own) for own in labels)),
        inputs=values.main_inputs,
        output=Value((*outer, op.output.shape[columns[0]]), _FLOAT),
        program=None,
    )
    program = RowProgram(len(rows.inputs), (Stage(ROW, _FLOAT, logits),))
    attrs = AttentionSlicesAttrs(
        op.attrs.shape,
        op.attrs.scores_dtype,
        DTYPE_NUMBERS[_FLOAT],
        op.attrs.scores_inputs,
        op.attrs.scores_chained,
        op.attrs.scores,
        op.attrs.rows_inputs,
        op.attrs.rows_chained,
        tuple(ROWS.params(rows.replace(attrs=RowsAttrs((last,), program)))),
        len(product.inputs),
        place,
        tuple(MATMUL.params(product)),
        length,  # which keys a mask leaves out depends on scores of other slices
        0,
        slices,
    )
    if attrs.length * (slices - 1) >= length:
        return None
    *others, width = product.output.shape
    found = op.replace(
        family=ATTENTION_SLICES,
        attrs=attrs,
        inputs=op.inputs[: len(op.inputs) - len(values.extra_inputs)],
        output=Value((slices, *others, width + NUMBERS), _FLOAT),
        name=f"{op.name}/slices",
    )
    return found, _merged(op, found.output, order, values)


def _merged(op: Op, slices: Value, order: list[int], values: Op) -> Op:
    """What attention `op` gives, from its slices, whose axes are those of the output in this order."""
    shape = (slices.shape[0], *op.output.shape)
    width = slices.shape[-1] - NUMBERS

    def shown(first: int, last: int) -> Operand:
        view = View.identity(slices.shape).slice((0,) * (len(shape) - 1) + (first,), (*slices.shape[:-1], last))
        view = view.transpose((0, *(1 + order.index(axis) for axis in range(len(order)))))
        return Operand(slices, view.broadcast_in_dim(shape, range(len(shape))))

    sums, most, weights = shown(0, width), shown(width, width + 1), shown(width + 1, width + NUMBERS)
    extras = [Operand(item.value, item.view.broadcast_in_dim(shape, range(1, len(shape)))) for item in values.extra_inputs]
    inputs = (sums, most, weights, *extras)
    stages: list[Stage] = []

    def stage(kind: int, write: Callable[[BlockBuilder], Ref], dtype: np.dtype = _FLOAT) -> int:
        """Adds a stage; its register."""
        builder = BlockBuilder(len(inputs) + len(stages))
        stages.append(Stage(kind, dtype, builder.build(write(builder))))
        return len(inputs) + len(stages) - 1

    def result(build: BlockBuilder) -> Ref:
        own = build.emit("div_f", build.input(sum_of_values), build.input(sum_of_weights))
        return own if values.program is None else build.splice(values.program, [own, *map(build.input, range(3, len(inputs)))])

    largest = stage(windows.MAX, lambda build: build.input(1))
    scale = stage(ROW, lambda build: build.emit("exp_f", build.emit("sub_f", build.input(1), build.input(largest))))
    sum_of_values = stage(windows.SUM, lambda build: build.emit("mul_f", build.input(0), build.input(scale)))
    sum_of_weights = stage(windows.SUM, lambda build: build.emit("mul_f", build.input(2), build.input(scale)))
    stage(NUMBER, result, op.output.dtype)
    attrs = RowsAttrs((0,), RowProgram(len(inputs), tuple(stages)))
    return op.replace(family=ROWS, attrs=attrs, inputs=inputs, program=None, name=f"{op.name}/merge")

"""Attention: a product, a row program on it and a product with the result, run a block of rows at a time. The pass makes them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aspen_jax.ir.dtypes import DTYPES
from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.family import OpFamily, Typed, Work
from aspen_jax.ops.matmul import MATMUL
from aspen_jax.ops.rows import ROWS

if TYPE_CHECKING:
    import jax

    from aspen_jax.ir.program import Op

# Fewer rows of queries are not worth a tile of their own.
_ROWS = 32


@dataclasses.dataclass(frozen=True)
class AttentionAttrs(Attrs):
    """Attributes of attention: the three ops that it is.

    Attributes:
        shape: of the scores.
        scores_dtype, weights_dtype: numbers of the dtypes between the ops.
        scores_inputs, rows_inputs, values_inputs: the number of inputs of each op.
        scores_chained, rows_chained, values_chained: which of them is the result of the op before; -1: none.
        scores, rows, values: the parameter words of each op.
        reach, exponent: row r (of the last axis but one) has no other weights than exact zeros from column r + reach on, as long
            as no score is larger than 2**exponent: those need not be computed. The length of a row: all count.
    """

    shape: tuple[int, ...]
    scores_dtype: int
    weights_dtype: int
    scores_inputs: int
    scores_chained: int
    scores: tuple[int, ...]
    rows_inputs: int
    rows_chained: int
    rows: tuple[int, ...]
    values_inputs: int
    values_chained: int
    values: tuple[int, ...]
    reach: int
    exponent: int

    def __str__(self) -> str:
        return f"(scores {'x'.join(map(str, self.shape))})"


class Attention(OpFamily):
    """values(rows(scores(...), ...), ...): matmul, rows along the last axis, matmul."""

    name = "attention"
    kernel = "attention"
    attrs_type = AttentionAttrs

    def infer(self, attrs: AttentionAttrs, inputs: Sequence[Typed]) -> Typed:
        scores, _, values = _parsed(attrs)
        between = (attrs.shape, np.dtype(np.float32))
        if MATMUL.infer(scores[0], inputs[:2])[0] != attrs.shape:
            raise ValueError(f"attention's scores are not {attrs.shape}")
        rest = list(inputs[attrs.scores_inputs + attrs.rows_inputs - 1 :])
        rest.insert(attrs.values_chained, between)
        return MATMUL.infer(values[0], rest[:2])

    def check(self, op: Op) -> None:
        _check_attrs(op)
        scores, rows, values = parts_of(op)
        for part in (scores, rows, values):
            part.family.check(part)
        if op.program is not None:
            raise ValueError("attention has an epilogue of its own beside its last product's")
        last = len(scores.output.shape) - 1
        if last < 1 or rows.attrs.axes != (last,):
            raise ValueError(f"attention's rows run along {rows.attrs.axes} of scores of rank {last + 1}, not the last axis")
        labels = weight_labels(op.attrs)
        if [axis for axis, label in enumerate(labels) if label < 0] != [last]:
            raise ValueError(f"attention's last product sums its weights as {labels}, not exactly along their last axis")

    def may_store(self, op: Op, dtype: np.dtype) -> bool:
        return MATMUL.may_store(parts_of(op)[2], dtype)

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        parts = parts_of(op)
        attrs: AttentionAttrs = op.attrs
        values_index = index - attrs.scores_inputs - attrs.rows_inputs + 1
        if values_index >= 0:
            return MATMUL.region(parts[2], values_index + (values_index >= attrs.values_chained), boxes)
        boxes = MATMUL.region(parts[2], attrs.values_chained, boxes)
        rows_index = index - attrs.scores_inputs
        if rows_index >= 0:
            return ROWS.region(parts[1], rows_index + (rows_index >= attrs.rows_chained), boxes)
        return MATMUL.region(parts[0], index, ROWS.region(parts[1], attrs.rows_chained, boxes))

    def grain(self, op: Op) -> tuple[int, ...]:
        labels = weight_labels(op.attrs)
        grain = [1 if axis in labels else extent for axis, extent in enumerate(op.output.shape)]
        grain[labels[-2]] = min(_ROWS, op.output.shape[labels[-2]])
        return tuple(max(step, 1) for step in grain)

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        parts = parts_of(op)
        weights = MATMUL.region(parts[2], op.attrs.values_chained, boxes)
        scores = MATMUL.work(parts[0], ROWS.region(parts[1], op.attrs.rows_chained, weights))
        rows, values = ROWS.work(parts[1], weights), MATMUL.work(parts[2], boxes)
        counts = np.clip((weights[:, -2].sum(axis=1) / 2 + op.attrs.reach) / op.attrs.shape[-1], 0, 1)
        return Work(counts * (scores.flops + rows.flops + values.flops), scores.bytes + rows.bytes + values.bytes)

    def reference(self, attrs: AttentionAttrs, *inputs: jax.Array) -> jax.Array:
        weights, rest = weights_of(attrs, *inputs)
        rest.insert(attrs.values_chained, weights)
        return _product(_parsed(attrs)[2], rest, np.dtype(np.float32))


ATTENTION = Attention()


@functools.lru_cache(maxsize=256)
def _parsed(attrs: AttentionAttrs) -> tuple[tuple[Any, Any], tuple[Any, Any], tuple[Any, Any]]:
    return MATMUL.parse(attrs.scores), ROWS.parse(attrs.rows), MATMUL.parse(attrs.values)


def _product(part: tuple[Any, Any], inputs: Sequence[jax.Array], dtype: np.dtype) -> jax.Array:
    attrs, program = part
    result = MATMUL.reference(attrs, *(item.astype(np.float32) for item in inputs[:2]))
    if program is None:
        return result.astype(dtype)
    return program.reference(result, *inputs[2:], shape=result.shape, dtype=dtype)


def weights_of(attrs: AttentionAttrs, *inputs: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """What the row program gives, in jax.lax, and the inputs of the last product beside it."""
    scores, (rows, _), _ = _parsed(attrs)
    rest = list(inputs)
    own, rest = rest[: attrs.scores_inputs], rest[attrs.scores_inputs :]
    between = _product(scores, own, DTYPES[attrs.scores_dtype])
    own, rest = rest[: attrs.rows_inputs - 1], rest[attrs.rows_inputs - 1 :]
    own.insert(attrs.rows_chained, between)
    return ROWS.reference(rows, *own).astype(DTYPES[attrs.weights_dtype]), rest


def weight_labels(attrs: AttentionAttrs) -> tuple[int, ...]:
    """The output's axis for each axis of the scores; a negative number for the last one, which is summed."""
    product, _ = _parsed(attrs)[2]
    return (product.a, product.b)[attrs.values_chained]


def _check_attrs(op: Op) -> None:
    """Check the attributes that `parts_of` relies on: the scores' shape, the dtypes, and which part has which inputs."""
    attrs: AttentionAttrs = op.attrs
    if not all(0 <= extent < 1 << 48 for extent in attrs.shape):
        raise ValueError(f"attention's scores have shape {list(attrs.shape)}")
    numbers = (attrs.scores_dtype, attrs.weights_dtype)
    if not all(0 <= number < len(DTYPES) for number in numbers):
        raise ValueError(f"attention keeps its scores and weights as dtypes number {numbers} of {len(DTYPES)}")
    counts = (attrs.scores_inputs, attrs.rows_inputs, attrs.values_inputs)
    if min(counts) < 1 or sum(counts) - 2 != len(op.inputs):
        raise ValueError(f"attention has {len(op.inputs)} inputs and its parts, of which two chain, {counts}")
    if not (1 <= attrs.reach <= max(attrs.shape[-1:], default=1) and 0 <= attrs.exponent < 128):
        raise ValueError(f"attention's weights reach {attrs.reach} columns where scores are up to 2**{attrs.exponent}")
    if attrs.scores_chained != -1 or not 0 <= attrs.rows_chained < attrs.rows_inputs or attrs.values_chained not in (0, 1):
        raise ValueError(f"attention chains {attrs.scores_chained}, {attrs.rows_chained} and {attrs.values_chained}")


def parts_of(op: Op) -> tuple[Op, Op, Op]:
    """The three ops, with values between them."""
    from aspen_jax.ir.program import Op, Operand, Value

    attrs: AttentionAttrs = op.attrs
    between = [Value(attrs.shape, DTYPES[number]) for number in (attrs.scores_dtype, attrs.weights_dtype)]
    rest = list(op.inputs)
    ops = []
    for (own_attrs, program), family, count, chained, before, output in zip(
        _parsed(attrs),
        (MATMUL, ROWS, MATMUL),
        (attrs.scores_inputs, attrs.rows_inputs, attrs.values_inputs),
        (attrs.scores_chained, attrs.rows_chained, attrs.values_chained),
        (None, *between),
        (*between, op.output),
        strict=True,
    ):
        taken = count - (before is not None)
        inputs, rest = rest[:taken], rest[taken:]
        if before is not None:
            inputs.insert(chained, Operand.whole(before))
        ops.append(Op(family, own_attrs, tuple(inputs), output, program, exact=op.exact))
    first, second, third = ops
    return first, second, third

"""Attention by slices of the keys: what each says of a row, for another op to merge ("flash-decoding", Dao et al. 2023)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aspen_jax.ops.attention import ATTENTION, AttentionAttrs, parts_of, weight_labels, weights_of
from aspen_jax.ops.block import box_sizes
from aspen_jax.ops.family import OpFamily, Typed, Work
from aspen_jax.ops.matmul import MATMUL
from aspen_jax.ops.row_program import ROW
from aspen_jax.ops.rows import ROWS

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op

# Slices begin at multiples of so many keys: what a GPU takes at once.
_CHUNK = 64

# Numbers of a row behind its columns: the largest logit, and the sum of weights.
NUMBERS = 2


@dataclasses.dataclass(frozen=True)
class AttentionSlicesAttrs(AttentionAttrs):
    """Attributes of attention_slices: those of attention, and how many slices there are.

    The row program gives logits, of which the softmax is taken. The last product has no epilogue, and its output the axes of the
    scores, with columns in place of keys.
    """

    slices: int

    @property
    def length(self) -> int:
        """Keys of a slice; the last has what is left."""
        return -(-self.shape[-1] // (self.slices * _CHUNK)) * _CHUNK


class AttentionSlices(OpFamily):
    """Attention over S slices of the keys: scores [..., Q, K], values of C columns -> [S, ..., Q, C + 2], float32.

    Weights are e^(logit - most), where `most` is the slice's largest logit. The output is C weighted sums of values, `most`, and
    the sum of weights. Where all logits of a slice are -inf, so is `most`, and weights are zero. Kernels are those of GPUs alone.
    """

    name = "attention_slices"
    kernel = "attention_slices"
    alike_everywhere = False  # where a box lies says which keys are read
    attrs_type = AttentionSlicesAttrs

    def infer(self, attrs: AttentionSlicesAttrs, inputs: Sequence[Typed]) -> Typed:
        shape, _ = ATTENTION.infer(attrs, inputs)
        if shape[:-1] != attrs.shape[:-1]:
            raise ValueError(f"attention_slices of scores {attrs.shape} gives {shape}")
        return (attrs.slices, *shape[:-1], shape[-1] + NUMBERS), np.dtype(np.float32)

    def check(self, op: Op) -> None:
        attrs: AttentionSlicesAttrs = op.attrs
        if len(op.output.shape) != len(attrs.shape) + 1 or op.output.shape[-1] < NUMBERS:
            raise ValueError(f"attention_slices gives {list(op.output.shape)} of scores {attrs.shape}")
        ATTENTION.check(attention_of(op))
        _, rows, values = parts_of(attention_of(op))
        if weight_labels(attrs) != (*range(len(attrs.shape) - 1), -1) or values.program is not None:
            raise ValueError(f"attention_slices multiplies weights labelled {weight_labels(attrs)}, with {values.program}")
        if [stage.kind for stage in rows.attrs.rows.stages] != [ROW]:
            raise ValueError(f"attention_slices takes the softmax of {rows.attrs.rows}, not of one value for each element")
        if not 1 <= attrs.slices <= attrs.shape[-1] or attrs.length * (attrs.slices - 1) >= attrs.shape[-1]:
            raise ValueError(f"attention_slices cuts {attrs.shape[-1]} keys into {attrs.slices} slices")
        super().check(op)

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        attrs: AttentionSlicesAttrs = op.attrs
        scores, _, values = parts_of(attention_of(op))
        weights, sums = _boxes(op, boxes)
        if index < attrs.scores_inputs:
            return MATMUL.region(scores, index, weights)
        if index < len(op.inputs) - 1:
            return weights
        place = 1 - attrs.values_chained
        region = MATMUL.region(values, place, sums)
        region[:, (values.attrs.a, values.attrs.b)[place].index(-1)] = weights[:, -1]
        return region

    def grain(self, op: Op) -> tuple[int, ...]:
        *outer, rows, columns = op.output.shape
        return (*(1 for _ in outer), rows, columns)

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        parts = parts_of(attention_of(op))
        weights, sums = _boxes(op, boxes)
        scores, values = MATMUL.work(parts[0], weights), MATMUL.work(parts[2], sums)
        whole = weights.copy()
        whole[:, -1] = (0, op.attrs.shape[-1])
        rows = ROWS.work(parts[1], whole)
        share = (weights[:, -1, 1] - weights[:, -1, 0]) / op.attrs.shape[-1]
        stored = 4.0 * box_sizes(boxes)
        return Work(
            scores.flops + share * (rows.flops + values.flops), scores.bytes + share * (rows.bytes + values.bytes) + stored
        )

    def reference(self, attrs: AttentionSlicesAttrs, *inputs: jax.Array) -> jax.Array:
        logits, (columns,) = weights_of(attrs, *inputs)
        product, _ = MATMUL.parse(attrs.values)
        keys = (product.a, product.b)[1 - attrs.values_chained].index(-1)
        slices = []
        for first in range(0, attrs.shape[-1], attrs.length):
            last = min(first + attrs.length, attrs.shape[-1])
            own = lax.slice_in_dim(logits, first, last, axis=logits.ndim - 1)
            most = own.max(axis=-1, keepdims=True)
            weights = jnp.exp(own - jnp.where(most == -np.inf, 0, most))
            operands = [lax.slice_in_dim(columns.astype(np.float32), first, last, axis=keys)]
            operands.insert(attrs.values_chained, weights)
            sums = MATMUL.reference(product, *operands)
            slices.append(jnp.concatenate([sums, most, weights.sum(axis=-1, keepdims=True)], axis=-1))
        return jnp.stack(slices)


ATTENTION_SLICES = AttentionSlices()


def attention_of(op: Op) -> Op:
    """The attention whose keys were cut, with logits in place of its weights, and its sums as they are."""
    from aspen_jax.ir.program import Value

    attrs = AttentionAttrs(**{field.name: getattr(op.attrs, field.name) for field in dataclasses.fields(AttentionAttrs)})
    *outer, columns = op.output.shape[1:]
    return op.replace(family=ATTENTION, attrs=attrs, output=Value((*outer, columns - NUMBERS), np.dtype(np.float32)))


def _boxes(op: Op, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The boxes of weights and of sums that boxes of the output come from."""
    weights, sums = boxes[:, 1:].copy(), boxes[:, 1:].copy()
    weights[:, -1] = np.minimum(boxes[:, 0] * op.attrs.length, op.attrs.shape[-1])
    sums[:, -1] = (0, op.output.shape[-1] - NUMBERS)
    return weights, sums

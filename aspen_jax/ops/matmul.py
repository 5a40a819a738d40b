"""Matrix products: `dot_general` with any dimensions in any order, on both sides and in the output."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax import lax

from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.converters import Builder, Equation, Unsupported, converts, need_dtypes
from aspen_jax.ops.family import PRODUCT_COLUMNS, OpFamily, Work, unpermuted
from aspen_jax.ops.layout import transposed
from aspen_jax.ops.opcodes import FLOATS
from aspen_jax.program import Operand

if TYPE_CHECKING:
    from aspen_jax.program import Op

_MAX_RANK = 8


@dataclasses.dataclass(frozen=True)
class MatmulAttrs(Attrs):
    """Attributes of matmul: a label for each dimension of an operand, as einsum has letters.

    Attributes:
        a: label l >= 0 is the output's dimension l, label -1 - j the j-th summed dimension.
        b: the same. Summed dimensions are in both operands, the output's in one or, for batches, in both.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]


class Matmul(OpFamily):
    """Sums of products of a and b, floats, over the summed dimensions."""

    name = "matmul"
    kernel = "matmul"
    takes_epilogue = True
    weight_inputs = (1,)
    attrs_type = MatmulAttrs

    def num_main(self, op: Op) -> int:
        return 2

    def infer(self, attrs: MatmulAttrs, inputs: Sequence[tuple[tuple[int, ...], np.dtype]]) -> tuple[tuple[int, ...], np.dtype]:
        (a, dtype), (b, _) = inputs
        if len(a) != len(attrs.a) or len(b) != len(attrs.b):
            raise ValueError(f"matmul of {a} by {b} with {attrs}")
        extents: dict[int, int] = {}
        for label, extent in (*zip(attrs.a, a, strict=True), *zip(attrs.b, b, strict=True)):
            if extents.setdefault(label, extent) != extent:
                raise ValueError(f"matmul of {a} by {b} with {attrs}: they disagree on label {label}")
        summed = {label for label in extents if label < 0}
        rank = len(extents) - len(summed)
        # Labels may be any numbers here: nothing may grow with them.
        if len(set(attrs.a)) < len(a) or len(set(attrs.b)) < len(b) or not all(label in extents for label in range(rank)):
            raise ValueError(f"matmul with {attrs}: a label is missing or twice on an operand")
        if not summed <= set(attrs.a) & set(attrs.b):
            raise ValueError(f"matmul with {attrs}: a summed dimension is in one operand only")
        return tuple(extents[label] for label in range(rank)), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        labels, shape = (op.attrs.a, op.attrs.b)[index], op.inputs[index].shape
        region = np.empty((len(boxes), len(shape), 2), np.int64)
        for d, (label, extent) in enumerate(zip(labels, shape, strict=True)):
            region[:, d] = (0, extent) if label < 0 else boxes[:, label]
        return region

    def grain(self, op: Op) -> tuple[int, ...]:
        *rows, columns = (1, *op.output.shape)
        return (*(1 for _ in rows[1:]), min(PRODUCT_COLUMNS, columns)) if op.output.shape else ()

    def written_as(self, op: Op, permutation: Sequence[int]) -> MatmulAttrs | None:
        new = unpermuted(range(len(permutation)), permutation)
        attrs = MatmulAttrs(
            *(tuple(new[label] if label >= 0 else label for label in labels) for labels in (op.attrs.a, op.attrs.b))
        )
        last = max((d for d, source in enumerate(permutation) if op.output.shape[source] > 1), default=-1)
        # A batch dimension has no columns to be innermost.
        return None if last in attrs.a and last in attrs.b else attrs

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        inner = math.prod(extent for label, extent in zip(op.attrs.a, op.inputs[0].shape, strict=True) if label < 0)
        a, b = (box_sizes(self.main_region(op, index, boxes)) * op.inputs[index].dtype.itemsize for index in range(2))
        return Work(own.flops + 2.0 * box_sizes(boxes) * inner, own.bytes + a + b)

    def reference(self, attrs: MatmulAttrs, *inputs: jax.Array) -> jax.Array:
        a, b = inputs
        batch = [label for label in attrs.a if label >= 0 and label in attrs.b]
        summed = [label for label in attrs.a if label < 0]
        free = [label for label in (*attrs.a, *attrs.b) if label >= 0 and label not in batch]

        def places(labels: tuple[int, ...], group: list[int]) -> list[int]:
            return [labels.index(label) for label in group]

        contracting = (places(attrs.a, summed), places(attrs.b, summed))
        batches = (places(attrs.a, batch), places(attrs.b, batch))
        product = lax.dot_general(a, b, (contracting, batches), precision=lax.Precision.HIGHEST)
        order = [*batch, *free]
        return lax.transpose(product, [order.index(d) for d in range(len(order))])


MATMUL = Matmul()


@converts("dot_general")
def _convert_dot(build: Builder, equation: Equation, lhs: Operand, rhs: Operand) -> Operand:
    need_dtypes(equation, (lhs, rhs), *FLOATS)
    if len(equation.shape) > _MAX_RANK:
        raise Unsupported(f"dot_general with an output of rank {len(equation.shape)}; kernels take up to {_MAX_RANK}")
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = equation.params["dimension_numbers"]
    lhs_free = [d for d in range(len(lhs.shape)) if d not in (*lhs_contract, *lhs_batch)]
    rhs_free = [d for d in range(len(rhs.shape)) if d not in (*rhs_contract, *rhs_batch)]
    # The order in which they are read fastest, which is that in which weights are worth storing.
    a = transposed(build, lhs, (*lhs_batch, *lhs_free, *lhs_contract))
    b = transposed(build, rhs, (*rhs_batch, *rhs_contract, *rhs_free))
    columns_from = len(lhs_batch) + len(lhs_free)
    batch, rows, columns = range(len(lhs_batch)), range(len(lhs_batch), columns_from), range(columns_from, len(equation.shape))
    summed = [-1 - j for j in range(len(lhs_contract))]
    return build.op(MATMUL, MatmulAttrs((*batch, *rows, *summed), (*batch, *summed, *columns)), [a, b], dtype=equation.dtype)

"""Matrix products: `dot_general` with any batch and contracting dimensions, as a batched [B,M,K] x [B,K,N]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax

from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.converters import Builder, Equation, converts, need_dtypes
from aspen_jax.ops.family import PRODUCT_COLUMNS, OpFamily, Work
from aspen_jax.ops.layout import reshaped, transposed
from aspen_jax.program import Operand

if TYPE_CHECKING:
    from aspen_jax.program import Op


class Matmul(OpFamily):
    """a [B,M,K] @ b [B,K,N] -> [B,M,N], float32."""

    name = "matmul"
    kernel = "matmul"
    takes_epilogue = True
    weight_inputs = (1,)

    def num_main(self, op: Op) -> int:
        return 2

    def infer(self, attrs: Any, inputs: Sequence[tuple[tuple[int, ...], np.dtype]]) -> tuple[tuple[int, ...], np.dtype]:
        (a, dtype), (b, _) = inputs
        if len(a) != 3 or len(b) != 3 or a[0] != b[0] or a[2] != b[1]:
            raise ValueError(f"matmul of {a} by {b}")
        return (a[0], a[1], b[2]), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        region = boxes.copy()
        contracted = 2 - index  # K is the last dimension of a and the middle one of b
        region[:, contracted, 0] = 0
        region[:, contracted, 1] = op.inputs[index].shape[contracted]
        return region

    def grain(self, op: Op) -> tuple[int, ...]:
        return (1, 1, min(PRODUCT_COLUMNS, op.output.shape[2]))

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        inner = op.inputs[0].shape[2]
        a, b = self.main_region(op, 0, boxes), self.main_region(op, 1, boxes)
        return Work(own.flops + 2.0 * box_sizes(boxes) * inner, own.bytes + 4 * (box_sizes(a) + box_sizes(b)))

    def reference(self, attrs: Any, *inputs: jax.Array) -> jax.Array:
        a, b = inputs
        return lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,))), precision=lax.Precision.HIGHEST)


MATMUL = Matmul()


@converts("dot_general")
def _convert_dot(build: Builder, equation: Equation, lhs: Operand, rhs: Operand) -> Operand:
    need_dtypes(equation, (lhs, rhs), "float32")
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = equation.params["dimension_numbers"]
    lhs_free = [d for d in range(len(lhs.shape)) if d not in (*lhs_contract, *lhs_batch)]
    rhs_free = [d for d in range(len(rhs.shape)) if d not in (*rhs_contract, *rhs_batch)]

    def extent(operand: Operand, dimensions: Sequence[int]) -> int:
        return math.prod(operand.shape[d] for d in dimensions)

    batch, inner = extent(lhs, lhs_batch), extent(lhs, lhs_contract)
    a = transposed(build, lhs, (*lhs_batch, *lhs_free, *lhs_contract))
    b = transposed(build, rhs, (*rhs_batch, *rhs_contract, *rhs_free))
    a = reshaped(build, a, (batch, extent(lhs, lhs_free), inner))
    b = reshaped(build, b, (batch, inner, extent(rhs, rhs_free)))
    return reshaped(build, build.op(MATMUL, None, [a, b]), equation.shape)

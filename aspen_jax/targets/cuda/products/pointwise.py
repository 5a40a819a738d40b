"""Convolutions of single pixels as products, whose blocks of rows need not be boxes of pixels."""

from __future__ import annotations

from aspen_jax.ir.program import Op, Operand
from aspen_jax.ops.matmul import MATMUL, MatmulAttrs
from aspen_jax.targets.cuda.products.tensor_maps import ANY_BLOCK, maps_of


def as_product(op: Op) -> Op | None:
    """A convolution by single pixels as a product; None where it is none, or no maps describe its operands."""
    product = pixels_as_rows(op)
    return product if product is not None and maps_of(product, ANY_BLOCK) else None


def pixels_as_rows(op: Op) -> Op | None:
    """A convolution by single pixels as a product; None where it is none."""
    x, w = op.inputs[:2]
    attrs = op.attrs
    if op.family.name != "conv2d" or w.shape[:2] != (1, 1) or attrs.groups > 1 or any(attrs.padding) or max(attrs.strides) > 1:
        return None
    matrix = w.view.reshape(w.shape[2:])
    if matrix is None:
        return None
    operands = (x, Operand(w.value, matrix), *op.extra_inputs)
    return op.replace(family=MATMUL, attrs=MatmulAttrs((0, 1, 2, -1), (-1, 3)), inputs=operands)

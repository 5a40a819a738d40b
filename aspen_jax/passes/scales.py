"""Lets a convolution by weights in panels, or in parts, scale the channels of its input as it reads them (squeeze and excite)."""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.bf16x6 import BF16X6
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import single
from aspen_jax.ops.conv_panels import CONV2D_PANELS

_SCALING = (CONV2D_PANELS, BF16X6)


def run(program: Program) -> Program:
    """Join each such convolution with the product of an image and a vector of channels that it alone reads."""
    readers = {value: len(uses) for value, uses in program.uses().items()}
    ops: dict[Value, Op] = {}
    for op in program.ops:
        product = ops.get(op.inputs[0].value) if _may_scale(op) else None
        factors = None if product is None or readers[product.output] > 1 else _factors(product)
        if factors is not None and product is not None:
            del ops[product.output]
            attrs = dataclasses.replace(op.attrs, scaled=True)
            op = op.replace(attrs=attrs, inputs=(factors[0], op.inputs[1], factors[1], *op.inputs[2:]))
        ops[op.output] = op
    return program.replace(ops=tuple(ops.values()))


def _may_scale(op: Op) -> bool:
    return op.family in _SCALING and len(op.output.shape) == 4 and op.inputs[0].is_whole


def _factors(product: Op) -> tuple[Operand, Operand] | None:
    """The image and its scale; None where the product is none of these."""
    if product.family is not BLOCK or product.program != single("mul_f"):
        return None
    for image, scale in (product.inputs, product.inputs[::-1]):
        _, *rows, along = scale.view.strides()
        if image.is_whole and not any(rows) and along == 1 and {image.dtype, scale.dtype} == {product.output.dtype}:
            return image, scale
    return None
